//! The user's wish to stop.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT, SIGTERM and SIGHUP, which then no longer end this process by themselves.
#[derive(Debug)]
pub struct Interrupt {
    signals: [Signal; 3],
}

impl Interrupt {
    /// Takes the signals over.
    pub fn listen() -> anyhow::Result<Self> {
        let on = |kind| signal(kind).context("listen for signals");
        Ok(Self { signals: [on(SignalKind::interrupt())?, on(SignalKind::terminate())?, on(SignalKind::hangup())?] })
    }

    /// Returns at the next signal; safe to drop half-way.
    pub async fn wait(&mut self) {
        let [int, term, hup] = &mut self.signals;
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
            _ = hup.recv() => {}
        }
    }
}
