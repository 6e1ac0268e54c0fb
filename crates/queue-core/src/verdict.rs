//! Where a job goes when an attempt ended other than well.

use std::time::Duration;

use crate::{AttemptEnd, MAX_UNDELIVERED, RetryPolicy};

/// What a job has used of its budgets. Travels with it through ready, scheduled and leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Failures and lease losses.
    pub attempts: u32,
    /// Lease losses.
    pub lease_losses: u32,
    /// Undelivered grants since the last one that arrived.
    pub undelivered: u32,
}

/// Why a job is dead. The text form is what the table stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeadReason {
    /// The handler said that another attempt cannot help.
    Final,
    /// Failed as often as it may.
    AttemptsExhausted,
    /// Lost as many leases as it may.
    LeaseLossesExhausted,
    /// Could not be delivered so often in a row.
    Undeliverable,
}

impl DeadReason {
    /// The text form.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Final => "failed_for_good",
            Self::AttemptsExhausted => "attempts_exhausted",
            Self::LeaseLossesExhausted => "lease_losses_exhausted",
            Self::Undeliverable => "undeliverable",
        }
    }
}

/// Where the job goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Ready at once, in front of its lane.
    Ready(Counters),
    /// Scheduled for so long from now.
    Scheduled(Counters, Duration),
    /// Dead.
    Dead(Counters, DeadReason),
}

/// Decides where a job goes after an attempt that did not succeed.
///
/// `retryable` and `wait` matter for failures and snoozes only; `chance` is uniform in 0..1. A success has no place here
/// and is treated as a release, which uses nothing.
pub fn after(
    end: AttemptEnd,
    used: Counters,
    policy: &RetryPolicy,
    retryable: bool,
    wait: Option<Duration>,
    chance: f64,
) -> Next {
    let delivered = Counters { undelivered: 0, ..used };
    match end {
        AttemptEnd::Succeeded | AttemptEnd::Released => Next::Ready(delivered),
        AttemptEnd::Snoozed => Next::Scheduled(delivered, wait.unwrap_or_default()),
        AttemptEnd::Undelivered => {
            let used = Counters { undelivered: used.undelivered.saturating_add(1), ..used };
            if used.undelivered >= MAX_UNDELIVERED {
                Next::Dead(used, DeadReason::Undeliverable)
            } else {
                Next::Ready(used)
            }
        }
        AttemptEnd::Lost => {
            let used = Counters {
                attempts: used.attempts.saturating_add(1),
                lease_losses: used.lease_losses.saturating_add(1),
                undelivered: 0,
            };
            if used.lease_losses >= policy.max_lease_losses {
                Next::Dead(used, DeadReason::LeaseLossesExhausted)
            } else if used.attempts >= policy.max_attempts {
                Next::Dead(used, DeadReason::AttemptsExhausted)
            } else {
                Next::Ready(used)
            }
        }
        AttemptEnd::Failed | AttemptEnd::TimedOut => {
            let used = Counters { attempts: used.attempts.saturating_add(1), ..delivered };
            if !retryable {
                Next::Dead(used, DeadReason::Final)
            } else if used.attempts >= policy.max_attempts {
                Next::Dead(used, DeadReason::AttemptsExhausted)
            } else {
                Next::Scheduled(used, wait.unwrap_or_else(|| policy.delay(used.attempts, chance)))
            }
        }
    }
}
