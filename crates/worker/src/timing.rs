//! How long the link waits for what.

use std::time::Duration;

/// How long running jobs may go on after the signal to stop, unless set otherwise: below Kubernetes' 30 s.
pub const DEFAULT_DRAIN_GRACE: Duration = Duration::from_secs(25);
/// How long a handler may take to return once its cancellation fired, unless set otherwise.
pub const DEFAULT_CANCEL_GRACE: Duration = Duration::from_secs(2);

/// The part of the lease time that is kept as a margin: the worker stops so much before the database would.
const MARGIN_PART: u32 = 10;
const SHORTEST_MARGIN: Duration = Duration::from_millis(20);

/// Intervals of the link. The defaults are the protocol's; tests shorten them.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Something is sent at least so often.
    pub ping: Duration,
    /// A scheduler that was silent for so long is gone.
    pub silence: Duration,
    /// A scheduler must welcome the worker within this.
    pub open: Duration,
    /// Pause before the first reconnect; doubles with each one that fails. All of it is subject to chance.
    pub backoff_base: Duration,
    /// Longest pause before a reconnect.
    pub backoff_cap: Duration,
    /// A stream that lived so long ends the back-off.
    pub stable: Duration,
    /// At the end, results may take so long to be acknowledged.
    pub flush: Duration,
    /// How long the end of the stream is waited for after the farewell.
    pub farewell: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            ping: Duration::from_secs(2),
            silence: Duration::from_secs(6),
            // Two pings: a Hello costs one commit, and the next scheduler should be tried well within a lease of 15 s.
            open: Duration::from_secs(4),
            backoff_base: Duration::from_millis(200),
            backoff_cap: Duration::from_secs(3),
            stable: Duration::from_secs(10),
            flush: Duration::from_secs(5),
            farewell: Duration::from_secs(1),
        }
    }
}

/// The margin that is taken off a lease time.
pub(crate) fn margin(ttl: Duration) -> Duration {
    (ttl / MARGIN_PART).max(SHORTEST_MARGIN)
}

/// The pause before a reconnect after `failures` in a row; `chance` is uniform in 0..1. Full jitter, so that the workers
/// of a scheduler that restarts do not come back all at once.
pub(crate) fn pause(timing: &Timing, failures: u32, chance: f64) -> Duration {
    let grown = timing.backoff_base.saturating_mul(1 << failures.min(16)).min(timing.backoff_cap);
    grown.mul_f64(chance.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_spread_by_chance_and_bounded() {
        let timing = Timing::default();
        assert_eq!(pause(&timing, 0, 0.5), Duration::from_millis(100));
        assert_eq!(pause(&timing, 2, 1.0), Duration::from_millis(800));
        assert_eq!(pause(&timing, u32::MAX, 1.0), timing.backoff_cap);
        assert_eq!(pause(&timing, u32::MAX, 0.0), Duration::ZERO);
    }

    #[test]
    fn a_silent_scheduler_and_a_slow_next_one_fit_into_the_default_lease() {
        let timing = Timing::default();
        let ttl = Duration::from_secs(15);
        assert!(timing.silence + timing.backoff_cap + timing.open + margin(ttl) < ttl);
        assert!(timing.ping * 2 < timing.silence);
    }
}
