//! One granted attempt, shared by the link and the runner that runs it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use queue_core::{DEFAULT_TIMEOUT, Invalid, JobId, Token};
use queue_proto::{to_duration, v1};
use tokio_util::sync::CancellationToken;

use crate::clock::micros;

/// A lease: the right to settle one job.
pub(crate) type Lease = (JobId, Token);

/// Why a handler should stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelReason {
    /// The scheduler says that the lease is lost. Whatever the handler returns is refused.
    LeaseLost,
    /// The lease could not be renewed in time, so it may be lost.
    LeaseExpired,
    /// The job's timeout is over.
    TimedOut,
    /// The worker stops and its grace is over.
    ShuttingDown,
    /// The scheduler asks for it, with a reason for people.
    Requested(String),
}

impl fmt::Display for CancelReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseLost => f.write_str("the lease is lost"),
            Self::LeaseExpired => f.write_str("the lease was not renewed in time"),
            Self::TimedOut => f.write_str("the job's timeout is over"),
            Self::ShuttingDown => f.write_str("the worker shuts down"),
            Self::Requested(reason) => write!(f, "cancelled: {reason}"),
        }
    }
}

const QUEUED: u8 = 0;
const STARTED: u8 = 1;
const REVOKED: u8 = 2;

/// What a grant says, and what has become of it.
pub(crate) struct Attempt {
    pub(crate) lease: Lease,
    pub(crate) number: u32,
    pub(crate) max_attempts: u32,
    pub(crate) queue: String,
    pub(crate) kind: String,
    pub(crate) payload: Bytes,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) key: Option<String>,
    pub(crate) traceparent: Option<String>,
    pub(crate) timeout: Duration,
    /// Fires when the handler should stop.
    pub(crate) cancel: CancellationToken,
    /// Fires when the handler did not, and is dropped at its next await.
    pub(crate) abort: CancellationToken,
    reason: OnceLock<CancelReason>,
    state: AtomicU8,
    // In microseconds of our clock; 0 before the start.
    started: AtomicU64,
    // Bits of a number; not a number until one is reported.
    progress: AtomicU64,
}

impl TryFrom<v1::Grant> for Attempt {
    type Error = Invalid;

    fn try_from(grant: v1::Grant) -> Result<Self, Invalid> {
        Ok(Self {
            lease: (grant.job_id.try_into()?, grant.token.try_into()?),
            number: grant.attempt,
            max_attempts: grant.max_attempts,
            queue: grant.queue,
            kind: grant.kind,
            payload: grant.payload,
            headers: grant.headers.into_iter().collect(),
            key: grant.idempotency_key,
            traceparent: grant.traceparent,
            timeout: grant.timeout.map_or(Ok(DEFAULT_TIMEOUT), |timeout| to_duration("timeout", timeout))?,
            cancel: CancellationToken::new(),
            abort: CancellationToken::new(),
            reason: OnceLock::new(),
            state: AtomicU8::new(QUEUED),
            started: AtomicU64::new(0),
            progress: AtomicU64::new(f64::NAN.to_bits()),
        })
    }
}

impl Attempt {
    /// Takes the right to start the handler. False if it was revoked.
    pub(crate) fn start(&self, now: Duration) -> bool {
        self.started.store(micros(now).max(1), Ordering::SeqCst);
        self.state.compare_exchange(QUEUED, STARTED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Takes back the right to start the handler. False if it has started.
    pub(crate) fn revoke(&self) -> bool {
        self.state.compare_exchange(QUEUED, REVOKED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// When the handler started, if it has.
    pub(crate) fn started_at(&self) -> Option<Duration> {
        let started = self.state.load(Ordering::SeqCst) == STARTED;
        started.then(|| Duration::from_micros(self.started.load(Ordering::SeqCst)))
    }

    /// Tells the handler to stop. The first reason counts, except that a loss is final.
    pub(crate) fn cancel(&self, reason: CancelReason) {
        self.revoke();
        // A second reason changes nothing.
        let _ = self.reason.set(reason);
        self.cancel.cancel();
    }

    /// Why the handler was told to stop, if it was.
    pub(crate) fn reason(&self) -> Option<&CancelReason> {
        self.reason.get()
    }

    /// Stores what the handler says of its progress, within 0 to 1.
    pub(crate) fn report(&self, progress: f64) {
        if !progress.is_nan() {
            self.progress.store(progress.clamp(0.0, 1.0).to_bits(), Ordering::Relaxed);
        }
    }

    /// The progress, if the handler reports it.
    pub(crate) fn progress(&self) -> Option<f64> {
        let progress = f64::from_bits(self.progress.load(Ordering::Relaxed));
        (!progress.is_nan()).then_some(progress)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An attempt at job `job` under token `token`.
    pub(crate) fn attempt(job: i64, token: i64) -> Attempt {
        let grant = v1::Grant { job_id: job, token, attempt: 1, kind: "k".to_owned(), ..v1::Grant::default() };
        Attempt::try_from(grant).unwrap()
    }

    #[test]
    fn what_was_revoked_never_starts_and_what_started_is_not_revoked() {
        let revoked = attempt(1, 1);
        assert!(revoked.revoke() && !revoked.start(Duration::from_secs(1)));
        assert_eq!(revoked.started_at(), None);
        let started = attempt(1, 2);
        assert!(started.start(Duration::from_secs(1)) && !started.revoke());
        assert_eq!(started.started_at(), Some(Duration::from_secs(1)));
    }

    #[test]
    fn progress_stays_within_0_and_1_and_is_a_number() {
        let attempt = attempt(1, 1);
        assert_eq!(attempt.progress(), None);
        for (reported, kept) in [(0.25, 0.25), (f64::NAN, 0.25), (f64::INFINITY, 1.0), (f64::NEG_INFINITY, 0.0)] {
            attempt.report(reported);
            assert_eq!(attempt.progress(), Some(kept));
        }
    }
}
