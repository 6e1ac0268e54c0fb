//! Runs one attempt on the pool and reports how it ended, whatever happens.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use queue_core::Outcome;
use tokio::sync::mpsc;
use tracing::Instrument;

use crate::attempt::{Attempt, Lease};
use crate::clock::{self, LeaseDeadline};
use crate::handler::BoxedHandler;
use crate::metrics::Metrics;
use crate::{Context, Pool, SubmitError};

/// How a run on the pool ended. Its slot is free.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ended {
    /// The handler returned.
    Returned(Outcome),
    /// The handler panicked with this message.
    Panicked(String),
    /// The handler ignored its cancellation and was dropped.
    Dropped,
    /// The handler was not started: the right to was revoked or the lease's time was over.
    NotStarted,
}

/// What attempts need besides themselves.
#[derive(Clone)]
pub(crate) struct Runner {
    pub(crate) pool: Pool,
    pub(crate) deadline: Arc<LeaseDeadline>,
    /// Holds one message per slot at most, so it is never full.
    pub(crate) ended: mpsc::Sender<(Lease, Ended)>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Runner {
    /// Hands an attempt to the pool. Its end is reported exactly once if this succeeds.
    pub(crate) fn submit(&self, handler: BoxedHandler, attempt: Arc<Attempt>) -> Result<(), SubmitError> {
        let runner = self.clone();
        self.pool.try_submit(move |_| async move {
            // Reports on drop, so that not even a panic in a destructor costs a slot.
            let mut report = Report { lease: attempt.lease, ended: None, to: runner.ended.clone() };
            report.ended = Some(runner.run(handler, attempt).await);
        })
    }

    async fn run(&self, handler: BoxedHandler, attempt: Arc<Attempt>) -> Ended {
        // Right before the start and not earlier: the process may have slept since the grant came.
        let now = clock::now();
        if !self.deadline.holds(now) || !attempt.start(now) {
            return Ended::NotStarted;
        }
        let span = tracing::info_span!(
            "job",
            job.id = attempt.lease.0.get(),
            job.kind = attempt.kind,
            job.queue = attempt.queue,
            lease.token = attempt.lease.1.get(),
            attempt = attempt.number,
        );
        if let Some(traceparent) = &attempt.traceparent {
            telemetry::set_parent(&span, traceparent);
        }
        let _running = self.metrics.running();
        let ended = guarded(handler, &attempt).instrument(span).await;
        self.metrics.ran(&attempt.kind, clock::now().saturating_sub(now), &ended);
        ended
    }
}

/// The handler, with its panics caught, until it returns or is dropped for ignoring its cancellation.
async fn guarded(handler: BoxedHandler, attempt: &Arc<Attempt>) -> Ended {
    let context = Context::new(attempt.clone());
    // The call is within the future, so that a panic before the first await is caught as well.
    let run = AssertUnwindSafe(async move { handler(context).await }).catch_unwind();
    tokio::select! {
        biased;
        result = run => match result {
            Ok(Ok(success)) => Ended::Returned(Outcome::Succeeded(success)),
            Ok(Err(error)) => Ended::Returned(error.into()),
            Err(panic) => Ended::Panicked(panic_text(&*panic)),
        },
        () = attempt.abort.cancelled() => Ended::Dropped,
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("the handler panicked with something that is no text").to_owned()
}

struct Report {
    lease: Lease,
    ended: Option<Ended>,
    to: mpsc::Sender<(Lease, Ended)>,
}

impl Drop for Report {
    fn drop(&mut self) {
        let ended = self.ended.take().unwrap_or_else(|| Ended::Panicked("a destructor of the handler panicked".into()));
        // Fails only if the link is over; then nobody waits for it.
        let _ = self.to.try_send((self.lease, ended));
    }
}
