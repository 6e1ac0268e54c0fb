//! Who is let in, and what is told of those who are not.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use lifecycle::Auth;
use telemetry::LogLimit;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tonic::service::Interceptor;
use tonic::transport::server::{Connected, TcpConnectInfo};
use tonic::{Request, Status};

use crate::metrics;

static LIMIT: LazyLock<LogLimit> = LazyLock::new(LogLimit::per_second);

/// Checks the token of each call. An interceptor for tonic's services.
#[derive(Debug, Clone)]
pub struct Doorman(pub Auth);

impl Interceptor for Doorman {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        if let Err(refusal) = self.0.check(request.metadata()) {
            metrics::refused("token");
            if let Some(suppressed) = LIMIT.allow("token", Instant::now()) {
                let peer = request.remote_addr().map(tracing::field::display);
                tracing::warn!(peer, reason = refusal.message(), suppressed, "caller refused");
            }
            return Err(refusal);
        }
        Ok(request)
    }
}

/// A connection on which a TLS handshake is to come first.
///
/// The server asks for its addresses when the handshake is done and never tells of one that fails: a connection that ends
/// before it was asked, and on which something came, is one of those.
#[derive(Debug)]
pub struct Guest {
    io: TcpStream,
    /// Of a connection that must begin with a handshake.
    peer: Option<SocketAddr>,
    spoke: bool,
    welcome: AtomicBool,
}

impl Guest {
    /// A connection that was accepted; `tls` tells whether it must begin with a handshake.
    pub fn new(io: TcpStream, tls: bool) -> Self {
        let peer = tls.then(|| io.peer_addr().ok()).flatten();
        Self { io, peer, spoke: false, welcome: AtomicBool::new(false) }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Who says nothing is a probe that looks whether the port is open.
        let Some(peer) = self.peer.filter(|_| self.spoke && !*self.welcome.get_mut()) else { return };
        metrics::refused("tls");
        if let Some(suppressed) = LIMIT.allow("tls", Instant::now()) {
            tracing::warn!(%peer, reason = "the TLS handshake failed", suppressed, "caller refused");
        }
    }
}

impl Connected for Guest {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.welcome.store(true, Ordering::Relaxed);
        self.io.connect_info()
    }
}

impl AsyncRead for Guest {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        self.spoke |= buf.filled().len() > before;
        polled
    }
}

impl AsyncWrite for Guest {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
