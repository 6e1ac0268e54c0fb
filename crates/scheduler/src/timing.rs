//! Every interval of the scheduler, derived from few flags.

use std::time::Duration;

use queue_store::ANSWER_MARGIN;

use crate::ServeArgs;

/// How often either side of a stream says something.
pub const PING_INTERVAL: Duration = Duration::from_secs(2);
/// A peer that was silent for so long is gone.
pub const SILENCE: Duration = Duration::from_secs(6);
/// How often is looked for what no hint told. The guarantee behind the hints.
pub const SLOW_POLL: Duration = Duration::from_secs(3);
/// Largest age of a stream; less a random part of up to a quarter, so that load spreads after replicas changed.
pub const MAX_STREAM_AGE: Duration = Duration::from_mins(30);
/// Longest wait between two tries of a statement while the database is away.
pub const MAX_RETRY_WAIT: Duration = Duration::from_secs(1);

/// Longest time between two beats of a scheduler.
const MAX_BEAT: Duration = Duration::from_secs(2);

/// Intervals and bounds.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// How long leases outlive a heartbeat.
    pub ttl: Duration,
    /// Between two heartbeats.
    pub heartbeat: Duration,
    /// For the acknowledgement of a grant.
    pub grant_ack: Duration,
    /// How old a claim may be when its grants are sent: older than its answer can be, unless this process was stopped.
    pub claim_age: Duration,
    /// Between two beats of a scheduler.
    pub beat: Duration,
    /// Silence of all schedulers after which sessions get one lease time of grace.
    pub gap: Duration,
    /// How long after its timeout a lease is taken back.
    pub overdue: Duration,
    /// Longest time in which an insert may still commit a position it got: its statement and one idle wait.
    pub insert_lag: Duration,
}

impl Timing {
    /// Derives the intervals.
    pub fn new(args: &ServeArgs) -> Self {
        let ttl = args.session_ttl;
        let grant_ack = args.grant_ack_timeout.unwrap_or(ttl / 3);
        Self {
            ttl,
            heartbeat: args.heartbeat_interval.unwrap_or(ttl / 3),
            grant_ack,
            claim_age: args.db_connect_timeout + args.db_statement_timeout + ANSWER_MARGIN + grant_ack,
            beat: (ttl / 8).min(MAX_BEAT),
            gap: ttl / 2,
            overdue: args.overdue_allowance,
            insert_lag: args.db_statement_timeout + args.db_idle_timeout,
        }
    }

    /// How long after an unanswered statement a lease of it may still be too young to be taken back: it may be committed
    /// late, and until then its grant could have been sent.
    pub fn doubt(&self) -> Duration {
        self.insert_lag + self.claim_age
    }
}
