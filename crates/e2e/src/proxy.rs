//! The network between two processes, with faults.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
    time::sleep,
};

/// Bytes that are passed on at a time.
const CHUNK: usize = 16 << 10;

/// Passes bytes between those who connect here and one address, as its rules say. Ends when dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// Where to connect.
    pub(crate) address: SocketAddr,
    rules: watch::Sender<Rules>,
    _listener: JoinSet<()>,
}

/// One of the two directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From those who connect.
    Up,
    /// To them.
    Down,
}

/// What holds now.
#[derive(Debug, Clone)]
struct Rules {
    /// Where new connections go.
    target: SocketAddr,
    up: Lane,
    down: Lane,
    /// New connections are closed at once.
    refuses: bool,
    /// Raised to reset the connections there are.
    resets: u64,
}

/// What holds for one direction.
#[derive(Debug, Clone, Default)]
struct Lane {
    /// Nothing gets through; what was sent arrives when it ends, as with packets that are sent again.
    silent: bool,
    /// How long everything takes.
    delay: Duration,
    /// The connection that passes the last of so many bytes is reset.
    cut: Option<Arc<AtomicI64>>,
}

impl Proxy {
    /// Starts to listen on a free port of the loopback.
    pub(crate) async fn start(target: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("listen for a proxy")?;
        let address = listener.local_addr()?;
        let (rules, watched) = watch::channel(Rules::open(target, 0));
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, watched));
        Ok(Self { address, rules, _listener: tasks })
    }

    /// Nothing gets through in this direction, until [`heal`](Self::heal).
    pub(crate) fn silence(&self, way: Way) {
        self.rules.send_modify(|rules| rules.lane(way).silent = true);
    }

    /// Everything takes so much longer in this direction.
    pub(crate) fn delay(&self, way: Way, by: Duration) {
        self.rules.send_modify(|rules| rules.lane(way).delay = by);
    }

    /// Resets the connection that passes the last of so many bytes in this direction.
    pub(crate) fn cut_after(&self, way: Way, bytes: i64) {
        self.rules.send_modify(|rules| rules.lane(way).cut = Some(Arc::new(AtomicI64::new(bytes))));
    }

    /// Resets all connections.
    pub(crate) fn reset(&self) {
        self.rules.send_modify(|rules| rules.resets += 1);
    }

    /// Resets all connections and takes no new ones, until [`heal`](Self::heal).
    pub(crate) fn refuse(&self) {
        self.rules.send_modify(|rules| {
            rules.refuses = true;
            rules.resets += 1;
        });
    }

    /// Resets all connections; new ones go elsewhere.
    pub(crate) fn move_to(&self, target: SocketAddr) {
        self.rules.send_modify(|rules| {
            rules.target = target;
            rules.resets += 1;
        });
    }

    /// Everything gets through again.
    pub(crate) fn heal(&self) {
        self.rules.send_modify(|rules| *rules = Rules::open(rules.target, rules.resets));
    }
}

impl Rules {
    /// Everything gets through.
    fn open(target: SocketAddr, resets: u64) -> Self {
        Self { target, up: Lane::default(), down: Lane::default(), refuses: false, resets }
    }

    fn lane(&mut self, way: Way) -> &mut Lane {
        match way {
            Way::Up => &mut self.up,
            Way::Down => &mut self.down,
        }
    }
}

async fn accept(listener: TcpListener, rules: watch::Receiver<Rules>) {
    // Dropped with the listener.
    let mut connections = JoinSet::new();
    while let Ok((near, _)) = listener.accept().await {
        if !rules.borrow().refuses {
            connections.spawn(connect(near, rules.clone()));
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn connect(near: TcpStream, rules: watch::Receiver<Rules>) {
    let target = rules.borrow().target;
    let Ok(far) = TcpStream::connect(target).await else { return };
    for stream in [&near, &far] {
        // A socket that is closed by both sides is dropped with a reset, as a machine that vanished would answer.
        let set = stream.set_nodelay(true).and_then(|()| stream.set_zero_linger());
        if set.is_err() {
            return;
        }
    }
    let resets = rules.borrow().resets;
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    let (up, down) = (Pump { way: Way::Up, resets, rules: rules.clone() }, Pump { way: Way::Down, resets, rules });
    // Whichever direction ends, the connection ends.
    tokio::select! {
        () = up.run(near_in, far_out) => {}
        () = down.run(far_in, near_out) => {}
    }
}

/// One direction of one connection.
struct Pump {
    way: Way,
    resets: u64,
    rules: watch::Receiver<Rules>,
}

impl Pump {
    async fn run(mut self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut chunk = vec![0; CHUNK];
        while self.open().await {
            let read = tokio::select! {
                read = from.read(&mut chunk) => read,
                changed = self.rules.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            let Ok(length @ 1..) = read else { return };
            sleep(self.lane().delay).await;
            if !self.open().await {
                return;
            }
            let allowed = self.allowed(length);
            if to.write_all(&chunk[..allowed]).await.is_err() || allowed < length {
                return;
            }
        }
    }

    fn lane(&self) -> Lane {
        self.rules.borrow().clone().lane(self.way).clone()
    }

    /// Waits while the direction is silent. False: the connection is to end.
    async fn open(&mut self) -> bool {
        let (way, resets) = (self.way, self.resets);
        let waited = self.rules.wait_for(|rules| rules.resets != resets || !rules.clone().lane(way).silent).await;
        waited.is_ok_and(|rules| rules.resets == resets)
    }

    /// How many of so many bytes get through.
    fn allowed(&self, length: usize) -> usize {
        let Some(cut) = self.lane().cut else { return length };
        let length = i64::try_from(length).unwrap_or(i64::MAX);
        let left = cut.fetch_sub(length, Ordering::Relaxed);
        // Spent before: this one is not meant any more.
        let allowed = if left <= 0 { length } else { left.min(length) };
        usize::try_from(allowed).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;

    /// A server that sends everything back, and a proxy to it.
    async fn echo() -> (Proxy, JoinSet<()>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("listens");
        let target = listener.local_addr().expect("is bound");
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        (Proxy::start(target).await.expect("starts"), tasks)
    }

    async fn say(stream: &mut TcpStream, text: &[u8]) -> std::io::Result<Vec<u8>> {
        stream.write_all(text).await?;
        let mut answer = vec![0; text.len()];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn silence_holds_bytes_back_and_delay_makes_them_late() {
        let (proxy, _echo) = echo().await;
        let mut stream = TcpStream::connect(proxy.address).await.expect("connects");
        assert_eq!(say(&mut stream, b"one").await.expect("comes back"), b"one");
        for way in [Way::Up, Way::Down] {
            proxy.silence(way);
            assert!(timeout(Duration::from_millis(100), say(&mut stream, b"two")).await.is_err(), "{way:?}");
            proxy.heal();
            let mut late = [0; 3];
            stream.read_exact(&mut late).await.expect("comes back");
            assert_eq!(&late, b"two");
        }
        proxy.delay(Way::Down, Duration::from_millis(150));
        let began = Instant::now();
        say(&mut stream, b"x").await.expect("comes back");
        assert!(began.elapsed() >= Duration::from_millis(150));
    }

    #[tokio::test]
    async fn connections_are_reset_refused_and_cut_at_a_byte() {
        let (proxy, _echo) = echo().await;
        let mut stream = TcpStream::connect(proxy.address).await.expect("connects");
        say(&mut stream, b"one").await.expect("comes back");
        proxy.reset();
        assert!(say(&mut stream, b"two").await.is_err());
        let mut stream = TcpStream::connect(proxy.address).await.expect("connects");
        say(&mut stream, b"three").await.expect("comes back");
        proxy.cut_after(Way::Down, 4);
        assert_eq!(say(&mut stream, b"ab").await.expect("comes back"), b"ab");
        assert!(say(&mut stream, b"cdef").await.is_err());
        let mut stream = TcpStream::connect(proxy.address).await.expect("connects");
        assert_eq!(say(&mut stream, b"once").await.expect("the cut was one"), b"once");
        proxy.refuse();
        let refused = TcpStream::connect(proxy.address).await;
        assert!(match refused {
            Ok(mut stream) => say(&mut stream, b"x").await.is_err(),
            Err(_) => true,
        });
    }
}
