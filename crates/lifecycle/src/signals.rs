//! Signals, on a thread of their own.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Shutdown;

/// How long after the second signal the process may still live, whatever hangs.
pub const HARD_STOP_BOUND: Duration = Duration::from_secs(2);

/// Shells report a process that a signal ended as 128 plus its number.
const SIGNAL_EXIT: u8 = 128;
const SIGINT: u8 = 2;
const SIGTERM: u8 = 15;

/// Remembers the signal that stopped the process at once, for its exit code.
#[derive(Debug, Clone, Default)]
pub(crate) struct HardStop(Arc<AtomicU8>);

impl HardStop {
    /// The exit code if a second signal came, as if that signal had ended the process.
    pub(crate) fn exit_code(&self) -> Option<ExitCode> {
        match self.0.load(Ordering::SeqCst) {
            0 => None,
            signal => Some(ExitCode::from(SIGNAL_EXIT + signal)),
        }
    }

    fn set(&self, signal: u8) {
        self.0.store(signal, Ordering::SeqCst);
    }
}

/// Listens for signals from now on; those that come before `main` runs are not lost.
///
/// On a thread with a runtime of its own: handlers that block every thread of the process's runtime must not keep it
/// from being stopped.
pub(crate) fn listen(shutdown: Shutdown) -> io::Result<HardStop> {
    let stop = HardStop::default();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let signals = {
        let _entered = runtime.enter();
        Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        }
    };
    let thread_stop = stop.clone();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || runtime.block_on(obey(signals, &shutdown, &thread_stop)))?;
    Ok(stop)
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    /// The next signal that asks to stop. A hangup is logged and ignored, so that a terminal that closes ends nothing.
    async fn next(&mut self) -> (&'static str, u8) {
        loop {
            tokio::select! {
                Some(()) = self.interrupt.recv() => return ("SIGINT", SIGINT),
                Some(()) = self.terminate.recv() => return ("SIGTERM", SIGTERM),
                Some(()) = self.hangup.recv() => {
                    tracing::info!(signal = "SIGHUP", "ignoring the signal: configuration is read at start");
                }
                else => std::future::pending::<()>().await,
            }
        }
    }
}

async fn obey(mut signals: Signals, shutdown: &Shutdown, stop: &HardStop) {
    let (name, _) = signals.next().await;
    tracing::info!(signal = name, "draining: finishing what runs, taking nothing new; a second signal stops at once");
    shutdown.trigger();
    let (name, number) = signals.next().await;
    tracing::warn!(signal = name, "stopping at once: what still runs is abandoned");
    stop.set(number);
    shutdown.trigger_hard();
    tokio::time::sleep(HARD_STOP_BOUND).await;
    exit(SIGNAL_EXIT + number);
}

#[expect(clippy::disallowed_methods, reason = "main hangs, and the one who sent two signals wants the process gone")]
fn exit(code: u8) {
    std::process::exit(code.into());
}
