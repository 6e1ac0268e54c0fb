//! What a handler is given.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use queue_core::{JobId, Token};
use tokio_util::sync::CancellationToken;

use crate::attempt::{Attempt, CancelReason};
use crate::clock;

/// One attempt at one job, as its handler sees it. Cheap to clone.
#[derive(Clone)]
pub struct Context(Arc<Attempt>);

impl Context {
    pub(crate) fn new(attempt: Arc<Attempt>) -> Self {
        Self(attempt)
    }

    /// The job's identity.
    pub fn job_id(&self) -> JobId {
        self.0.lease.0
    }

    /// The fencing token of this attempt's lease: larger than that of every earlier attempt at the job.
    ///
    /// Hand it to whatever the job changes, so that an attempt that lost its lease can be refused there.
    pub fn token(&self) -> Token {
        self.0.lease.1
    }

    /// The queue that the job came from.
    pub fn queue(&self) -> &str {
        &self.0.queue
    }

    /// The job's kind.
    pub fn kind(&self) -> &str {
        &self.0.kind
    }

    /// The job's input.
    pub fn payload(&self) -> &Bytes {
        &self.0.payload
    }

    /// The job's headers.
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.0.headers
    }

    /// The job's idempotency key, if it has one: the same for every attempt.
    pub fn idempotency_key(&self) -> Option<&str> {
        self.0.key.as_deref()
    }

    /// Number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.number
    }

    /// Attempts that the job may use in all.
    pub fn max_attempts(&self) -> u32 {
        self.0.max_attempts
    }

    /// The W3C trace context of whoever enqueued the job, if it was given.
    pub fn traceparent(&self) -> Option<&str> {
        self.0.traceparent.as_deref()
    }

    /// Time left until the job's timeout; then the cancellation fires.
    pub fn remaining(&self) -> Duration {
        let now = clock::now();
        (self.0.started_at().unwrap_or(now) + self.0.timeout).saturating_sub(now)
    }

    /// Fires when the handler should stop; see [`Context::cancel_reason`].
    ///
    /// A handler that has not returned the worker's cancel grace later is dropped at its next await. One that blocks its
    /// thread keeps its slot until it returns, but its result counts for nothing.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.0.cancel
    }

    /// Why the handler should stop, if it should.
    pub fn cancel_reason(&self) -> Option<&CancelReason> {
        self.0.reason()
    }

    /// Reports the progress, 0 to 1. Sent with the next heartbeat; only the latest counts.
    ///
    /// What lies outside is brought within, infinities too; what is not a number is ignored.
    pub fn progress(&self, progress: f64) {
        self.0.report(progress);
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the payload, and no headers: they may hold credentials.
        f.debug_struct("Context")
            .field("job_id", &self.job_id())
            .field("kind", &self.kind())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}
