//! What a handler's run came to.

use std::time::Duration;

use bytes::Bytes;

use crate::{Invalid, MAX_CODE_CHARS, MAX_ERROR_CHARS, MAX_FOLLOW_UPS, MAX_WAIT, NewJob, stored_text};

/// The end of an attempt as the holder of the lease reports it.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Done.
    Succeeded(Success),
    /// Failed, for now or for good.
    Failed(Failure),
    /// Given back; uses no attempt.
    Released {
        /// For people.
        reason: String,
    },
    /// To be called again later; uses no attempt.
    Snoozed(Duration),
}

/// What a successful attempt leaves.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Success {
    /// Kept with the job.
    pub result: Option<Bytes>,
    /// Committed with the completion, once per idempotency key.
    pub effect: Option<Bytes>,
    /// Enqueued in the same transaction.
    pub follow_ups: Vec<NewJob>,
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// For programs.
    pub code: String,
    /// For people.
    pub message: String,
    /// Whether another attempt may help.
    pub retryable: bool,
    /// Wins over the policy's delay.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure whose texts are cut and cleaned, so that it can always be stored.
    pub fn new(code: &str, message: &str, retryable: bool) -> Self {
        Self {
            code: stored_text(code, MAX_CODE_CHARS),
            message: stored_text(message, MAX_ERROR_CHARS),
            retryable,
            retry_after: None,
        }
    }
}

impl Outcome {
    /// Refuses what cannot be stored, naming the field; a failure is always storable.
    pub fn checked(self, max_payload_bytes: usize) -> Result<Self, Invalid> {
        match &self {
            Self::Succeeded(success) => {
                bounded("succeeded.result", success.result.as_ref(), max_payload_bytes)?;
                bounded("succeeded.effect", success.effect.as_ref(), max_payload_bytes)?;
                if success.follow_ups.len() > MAX_FOLLOW_UPS {
                    return Err(Invalid::new("succeeded.follow_ups", format!("has more than {MAX_FOLLOW_UPS} jobs")));
                }
            }
            Self::Snoozed(duration) if *duration > MAX_WAIT => {
                return Err(Invalid::new("snoozed.duration", "must be at most 30 days"));
            }
            Self::Failed(failure) if failure.retry_after.is_some_and(|after| after > MAX_WAIT) => {
                return Err(Invalid::new("failed.retry_after", "must be at most 30 days"));
            }
            _ => {}
        }
        Ok(self)
    }
}

fn bounded(field: &str, bytes: Option<&Bytes>, max: usize) -> Result<(), Invalid> {
    match bytes {
        Some(bytes) if bytes.len() > max => {
            Err(Invalid::new(field, format!("has {} bytes, at most {max} are allowed", bytes.len())))
        }
        _ => Ok(()),
    }
}
