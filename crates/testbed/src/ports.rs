//! Addresses for servers under test.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tokio::net::TcpStream;

use crate::eventually;

/// Below the range out of which outgoing connections get theirs, so that none can take a port between look and use.
const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;

/// A loopback address that nobody listens on. Not given twice by one process, and unlikely to be by two.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = std::process::id().wrapping_mul(127);
    for _ in 0..COUNT {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let offset = start.wrapping_add(step) % u32::from(COUNT);
        let port = FIRST + u16::try_from(offset).unwrap_or_default();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port from {FIRST} on");
}

/// Waits until someone accepts connections at `address`.
pub async fn listening(address: SocketAddr, within: Duration) {
    eventually(within, &format!("a listener at {address}"), async || TcpStream::connect(address).await.is_ok()).await;
}
