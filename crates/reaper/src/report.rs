//! What a pass did.

use std::fmt;
use std::time::Duration;

/// Violations that are logged one by one; the others are counted.
const MAX_VIOLATION_LINES: usize = 20;

/// A part of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Taking or renewing the maintenance lease.
    Acquire,
    /// Marking sessions dead.
    Expire,
    /// Taking back leases.
    Reap,
    /// Partitions, dead sessions, expired keys.
    Tidy,
    /// Checking invariants.
    Audit,
}

impl Step {
    /// Name in logs and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Expire => "expire",
            Self::Reap => "reap",
            Self::Tidy => "tidy",
            Self::Audit => "audit",
        }
    }
}

/// A step that failed.
#[derive(Debug)]
pub struct Failure {
    /// Which one.
    pub step: Step,
    /// Why.
    pub error: client::Error,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step.as_str(), self.error)
    }
}

/// What tidying did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tidied {
    /// Partitions created ahead.
    pub partitions_created: u32,
    /// Partitions past their retention.
    pub partitions_dropped: u32,
    /// Dead sessions.
    pub sessions_removed: u32,
    /// Expired idempotency keys.
    pub keys_removed: u32,
}

/// What a pass did, and what it could not do.
#[derive(Debug, Default)]
pub struct Report {
    /// Whether another reaper acts.
    pub standby: bool,
    /// Who holds the maintenance lease, if that is known.
    pub holder: String,
    /// Sessions marked dead.
    pub expired: u64,
    /// How late the latest of them was marked.
    pub lag: Duration,
    /// Whether nothing could be marked, because no scheduler could renew a while ago.
    pub held_back: bool,
    /// Leases taken back.
    pub reaped: u64,
    /// Of these: jobs that are ready again.
    pub retried: u64,
    /// Of these: jobs that are dead now.
    pub dead: u64,
    /// What tidying did, if it was due and succeeded.
    pub tidied: Option<Tidied>,
    /// Violated invariants, if the audit was due and succeeded.
    pub violations: Option<Vec<String>>,
    /// Whether work was left for the next pass: shutdown, or more pages than one pass may have.
    pub unfinished: bool,
    /// Steps that failed. The others were done.
    pub failures: Vec<Failure>,
    /// How long it took.
    pub took: Duration,
}

impl Report {
    /// Whether nothing failed; standing by is a success too.
    pub fn succeeded(&self) -> bool {
        self.failures.is_empty()
    }

    /// Whether the audit found something.
    pub fn violated(&self) -> bool {
        self.violations.as_ref().is_some_and(|violations| !violations.is_empty())
    }

    /// Whether anything changed, so that it is worth a line.
    pub fn changed(&self) -> bool {
        self.expired > 0 || self.reaped > 0 || self.tidied.is_some_and(|tidied| tidied != Tidied::default())
    }

    /// Writes the line of the pass, and one for each violated invariant. Failures are the caller's to tell.
    pub fn log(&self) {
        self.log_violations();
        let duration_ms = millis(self.took);
        if !self.changed() {
            tracing::debug!(
                standby = self.standby,
                held_back = self.held_back,
                duration_ms,
                "pass done, nothing to do"
            );
            return;
        }
        let tidied = self.tidied.unwrap_or_default();
        tracing::info!(
            expired = self.expired,
            reaped = self.reaped,
            retried = self.retried,
            dead = self.dead,
            lag_ms = millis(self.lag),
            partitions_created = tidied.partitions_created,
            partitions_dropped = tidied.partitions_dropped,
            sessions_removed = tidied.sessions_removed,
            keys_removed = tidied.keys_removed,
            unfinished = self.unfinished,
            duration_ms,
            "pass done"
        );
    }

    fn log_violations(&self) {
        let violations = self.violations.as_deref().unwrap_or_default();
        for violation in violations.iter().take(MAX_VIOLATION_LINES) {
            tracing::error!(violation, "an invariant of the storage is violated");
        }
        if let Some(more) = violations.len().checked_sub(MAX_VIOLATION_LINES).filter(|more| *more > 0) {
            tracing::error!(more, "more invariants of the storage are violated");
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
