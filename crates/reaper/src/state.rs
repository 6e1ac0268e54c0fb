//! What one pass leaves for the next.

use std::time::Duration;

use queue_core::{Token, WorkerName};
use tokio::time::Instant;

/// How passes are done.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of this reaper, for people.
    pub holder: WorkerName,
    /// Time between two tidyings.
    pub tidy_every: Duration,
    /// Time between two audits.
    pub audit_every: Duration,
    /// Sessions per call, 1 to 1,000.
    pub sessions_page: u32,
    /// Leases per call, 1 to 1,000.
    pub leases_page: u32,
}

/// The maintenance lease, as long as it was not refused.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    /// Sent with every call: a stale one changes nothing.
    pub token: Token,
    /// Before it was asked for, so that the time left is never overestimated.
    pub asked: Instant,
    /// Lease time from the answer.
    pub ttl: Duration,
}

impl Held {
    /// Whether a third of the lease time is over.
    pub fn wants_renewal(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.asked) >= self.ttl / 3
    }
}

/// The state of a reaper between passes.
#[derive(Debug)]
pub struct State {
    /// How passes are done.
    pub options: Options,
    /// The maintenance lease, if it is held.
    pub held: Option<Held>,
    /// When the storage was last tidied, or that failed: a slow step must not be tried in every pass.
    pub tidied: Option<Instant>,
    /// When the invariants were last audited, or that failed.
    pub audited: Option<Instant>,
}

impl State {
    /// Holds nothing, and everything is due.
    pub fn new(options: Options) -> Self {
        Self { options, held: None, tidied: None, audited: None }
    }

    pub(crate) fn tidy_is_due(&self, now: Instant) -> bool {
        is_due(self.tidied, self.options.tidy_every, now)
    }

    pub(crate) fn audit_is_due(&self, now: Instant) -> bool {
        is_due(self.audited, self.options.audit_every, now)
    }
}

fn is_due(last: Option<Instant>, every: Duration, now: Instant) -> bool {
    last.is_none_or(|last| now.saturating_duration_since(last) >= every)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_due_at_first_and_then_after_its_interval() {
        let now = Instant::now();
        let every = Duration::from_mins(1);
        assert!(is_due(None, every, now));
        assert!(!is_due(Some(now), every, now + Duration::from_secs(59)));
        assert!(is_due(Some(now), every, now + every));
    }
}
