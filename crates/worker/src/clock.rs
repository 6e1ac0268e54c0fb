//! The worker's own deadline, on a clock that also counts while the machine sleeps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since some fixed point, never set back. On Linux it goes on while the machine sleeps, as the database's does.
pub(crate) fn now() -> Duration {
    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: ClockId = ClockId::Monotonic;
    // A clock since boot is never negative.
    Duration::try_from(clock_gettime(CLOCK)).unwrap_or_default()
}

/// Until when the session's leases surely live. Written by the link, read before every start of a handler.
#[derive(Debug, Default)]
pub(crate) struct LeaseDeadline(AtomicU64);

impl LeaseDeadline {
    /// Leases live at least until `until`, if that is later than what was known.
    pub(crate) fn extend(&self, until: Duration) {
        self.0.fetch_max(micros(until), Ordering::SeqCst);
    }

    /// No lease lives: the session is over.
    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    /// The deadline. Zero if none is held.
    pub(crate) fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::SeqCst))
    }

    /// Whether leases surely live at `now`.
    pub(crate) fn holds(&self, now: Duration) -> bool {
        now < self.get()
    }
}

/// Microseconds, which fit 64 bits for 500,000 years.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_only_moves_forward_until_the_session_ends() {
        let deadline = LeaseDeadline::default();
        assert!(!deadline.holds(Duration::from_secs(1)));
        deadline.extend(Duration::from_secs(10));
        deadline.extend(Duration::from_secs(5));
        assert!(deadline.holds(Duration::from_secs(9)));
        assert!(!deadline.holds(Duration::from_secs(10)));
        deadline.clear();
        assert!(!deadline.holds(Duration::from_secs(1)));
    }

    #[test]
    fn the_clock_moves_forward() {
        let before = now();
        assert!(now() >= before && before > Duration::ZERO);
    }
}
