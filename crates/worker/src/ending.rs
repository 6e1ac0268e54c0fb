//! What the end of a run means for its job.

use queue_core::{Failure, Outcome};

use crate::attempt::CancelReason;
use crate::runner::Ended;

/// What a settlement takes besides its bytes, and a follow-up job besides its own, roughly and rounded up.
const OVERHEAD_BYTES: usize = 1_024;

/// What to report for a run that ended so after it was told to stop for that reason.
pub(crate) fn outcome(ended: Ended, reason: Option<&CancelReason>) -> Outcome {
    use CancelReason::{LeaseExpired, LeaseLost, Requested, ShuttingDown, TimedOut};
    let timed_out = || Failure::new("timeout", "the handler ran into the job's timeout", true);
    match (ended, reason) {
        (Ended::NotStarted, reason) => Outcome::Released { reason: said(reason.unwrap_or(&LeaseExpired)) },
        (_, Some(TimedOut)) => Outcome::Failed(timed_out()),
        // A handler that was interrupted and fails for it has not failed.
        (Ended::Returned(Outcome::Failed(failure)), Some(reason @ (ShuttingDown | LeaseExpired)))
            if failure.retryable =>
        {
            Outcome::Released { reason: said(reason) }
        }
        (Ended::Returned(outcome), _) => outcome,
        (Ended::Panicked(message), _) => Outcome::Failed(Failure::new("panic", &message, true)),
        (Ended::Dropped, Some(reason @ (ShuttingDown | LeaseExpired | LeaseLost))) => {
            Outcome::Released { reason: said(reason) }
        }
        (Ended::Dropped, Some(Requested(_)) | None) => {
            Outcome::Failed(Failure::new("cancelled", "the handler did not stop when it was cancelled", true))
        }
    }
}

/// A reason as the history shows it.
pub(crate) fn said(reason: &CancelReason) -> String {
    match reason {
        CancelReason::ShuttingDown => "shutdown".to_owned(),
        other => other.to_string(),
    }
}

/// Bytes that an outcome takes in a message, roughly.
pub(crate) fn size(outcome: &Outcome) -> usize {
    let Outcome::Succeeded(success) = outcome else { return OVERHEAD_BYTES };
    let own = [&success.result, &success.effect].into_iter().flatten().map(bytes::Bytes::len).sum::<usize>();
    let follow_ups = success.follow_ups.iter().map(|job| {
        let headers = job.headers.entries().iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        job.payload.len() + headers + OVERHEAD_BYTES
    });
    own + follow_ups.sum::<usize>() + OVERHEAD_BYTES
}
