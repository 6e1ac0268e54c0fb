//! The jobs that are measured.

use std::time::Duration;

use bytes::Bytes;
use queue_core::{Invalid, KindName, NewJob, QueueName};

use crate::payload;

/// The queue of all of them.
pub(crate) const QUEUE: &str = "bench";

/// A job that does nothing.
pub(crate) const NOOP: &str = "bench.noop";

/// A job that runs until its worker stops.
pub(crate) const HOLD: &str = "bench.hold";

/// More than any scenario takes, so that no held job runs into its timeout.
const HOLD_TIMEOUT: Duration = Duration::from_hours(4);

/// Makes jobs of one kind.
#[derive(Debug, Clone)]
pub(crate) struct Jobs {
    queue: QueueName,
    kind: KindName,
    plain: Bytes,
    timeout: Option<Duration>,
}

impl Jobs {
    /// Jobs that do nothing.
    pub(crate) fn noop() -> Result<Self, Invalid> {
        Self::of(NOOP, None)
    }

    /// Jobs that hold their slot.
    pub(crate) fn hold() -> Result<Self, Invalid> {
        Self::of(HOLD, Some(HOLD_TIMEOUT))
    }

    fn of(kind: &str, timeout: Option<Duration>) -> Result<Self, Invalid> {
        Ok(Self { queue: QueueName::new(QUEUE)?, kind: KindName::new(kind)?, plain: payload::plain(), timeout })
    }

    /// One job.
    pub(crate) fn plain(&self) -> NewJob {
        self.with(self.plain.clone())
    }

    /// One job that says when it was made.
    pub(crate) fn stamped(&self) -> NewJob {
        self.with(payload::stamped())
    }

    /// One job with an idempotency key of its own: text of the length of a UUID.
    pub(crate) fn keyed(&self, number: u64) -> Result<NewJob, Invalid> {
        self.plain().with_key(&format!("bench-{number:030}"))
    }

    fn with(&self, payload: Bytes) -> NewJob {
        NewJob { timeout: self.timeout, ..NewJob::new(self.queue.clone(), self.kind.clone(), payload) }
    }
}
