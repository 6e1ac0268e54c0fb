//! Whether this process wants traffic.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What `/readyz` answers. Clones share one state, which starts as not ready.
#[derive(Debug, Clone)]
pub struct Readiness(Arc<Mutex<State>>);

#[derive(Debug, Clone, Copy)]
enum State {
    Ready,
    ReadyUntil(Instant),
    NotReady(&'static str),
    Closed(&'static str),
}

static PROCESS: LazyLock<Readiness> = LazyLock::new(Readiness::new);

/// The readiness of this process, served at `/readyz`.
pub fn readiness() -> Readiness {
    PROCESS.clone()
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

impl Readiness {
    /// A state of its own, not ready.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(State::NotReady("starting"))))
    }

    /// Ready until told otherwise.
    pub fn ready(&self) {
        self.set(State::Ready);
    }

    /// Ready for that long from that instant, unless told again: for loops that prove themselves by each pass.
    pub fn ready_for(&self, now: Instant, span: Duration) {
        self.set(State::ReadyUntil(now + span));
    }

    /// Not ready; the reason is shown to whoever asks, such as "draining".
    pub fn not_ready(&self, reason: &'static str) {
        self.set(State::NotReady(reason));
    }

    /// Not ready for good, whatever is said later: the process drains.
    pub fn close(&self, reason: &'static str) {
        self.set(State::Closed(reason));
    }

    /// Whether it is ready at that instant, or the reason why not.
    pub fn check(&self, now: Instant) -> Result<(), &'static str> {
        match *self.lock() {
            State::Ready => Ok(()),
            State::ReadyUntil(end) if now < end => Ok(()),
            State::ReadyUntil(_) => Err("no recent success"),
            State::NotReady(reason) | State::Closed(reason) => Err(reason),
        }
    }

    fn set(&self, state: State) {
        let mut current = self.lock();
        if !matches!(*current, State::Closed(_)) {
            *current = state;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_runs_out_unless_it_is_renewed() {
        let readiness = Readiness::new();
        let now = Instant::now();
        assert_eq!(readiness.check(now), Err("starting"));
        readiness.ready_for(now, Duration::from_secs(15));
        assert_eq!(readiness.check(now + Duration::from_secs(14)), Ok(()));
        assert_eq!(readiness.check(now + Duration::from_secs(15)), Err("no recent success"));
        readiness.not_ready("database unavailable");
        assert_eq!(readiness.check(now), Err("database unavailable"));
        readiness.ready();
        assert_eq!(readiness.check(now), Ok(()));
    }

    #[test]
    fn a_draining_process_is_never_ready_again() {
        let readiness = Readiness::new();
        readiness.clone().close("draining");
        readiness.ready();
        assert_eq!(readiness.check(Instant::now()), Err("draining"));
    }
}
