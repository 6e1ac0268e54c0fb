//! A network between two parties that a test can break.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

const CHUNK: usize = 16 << 10;

/// What becomes of bytes and connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// Everything arrives.
    Whole,
    /// What the server says is lost; what the client says arrives.
    Deaf,
    /// Nothing arrives and nothing is closed, as when packets are dropped.
    Silent,
    /// Connections are closed, and new ones at once.
    Cut,
}

/// A listener that forwards to a server.
pub struct Proxy {
    pub address: SocketAddr,
    network: watch::Sender<Network>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Forwards to this server, such as `127.0.0.1:5432`.
    pub async fn start(server: String, network: Network) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (network, state) = watch::channel(network);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, server.clone(), state.clone()));
            }
        });
        Self { address, network, task }
    }

    /// In front of a database: the proxy, and the URL that leads through it.
    pub async fn of_database(url: &str, network: Network) -> (Self, String) {
        let (scheme, rest) = url.split_once("://").expect("a URL");
        let (authority, path) = rest.split_once('/').expect("a database");
        let (user, server) = authority.rsplit_once('@').expect("a user");
        let server = if server.contains(':') { server.to_owned() } else { format!("{server}:5432") };
        let proxy = Self::start(server, network).await;
        let through = format!("{scheme}://{user}@{}/{path}", proxy.address);
        (proxy, through)
    }

    /// Changes the network, for connections that are there as well.
    pub fn become_(&self, network: Network) {
        self.network.send_replace(network);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.network.send_replace(Network::Cut);
        self.task.abort();
    }
}

async fn forward(client: TcpStream, server: String, state: watch::Receiver<Network>) {
    let forwarding = async {
        let mut usable = state.clone();
        usable.wait_for(|network| *network != Network::Silent).await.ok()?;
        let server = TcpStream::connect(server).await.ok()?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::join!(
            copy(from_client, to_server, state.clone(), false),
            copy(from_server, to_client, state.clone(), true)
        );
        Some(())
    };
    let mut cut = state.clone();
    tokio::select! {
        _ = forwarding => {}
        _ = cut.wait_for(|network| *network == Network::Cut) => {}
    }
}

/// Forwards one direction; `answers` are what a deaf client does not hear.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut state: watch::Receiver<Network>,
    answers: bool,
) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let Ok(network) = state.wait_for(|network| *network != Network::Silent).await.map(|network| *network) else {
            break;
        };
        match network {
            Network::Cut => break,
            Network::Deaf if answers => continue,
            _ => {}
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}
