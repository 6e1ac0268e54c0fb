//! Outcomes of attempts.

use queue_core::{Failure, Invalid, MAX_ERROR_CHARS, NewJob, Outcome, Success, stored_text};

use crate::v1::settlement;
use crate::{millis, to_duration, v1};

impl TryFrom<settlement::Outcome> for Outcome {
    type Error = Invalid;

    /// Cuts and cleans error texts, so that a failure can always be stored; checks the rest, but for sizes.
    fn try_from(outcome: settlement::Outcome) -> Result<Self, Invalid> {
        Ok(match outcome {
            settlement::Outcome::Succeeded(success) => Self::Succeeded(success.try_into()?),
            settlement::Outcome::Failed(failed) => {
                let mut failure = Failure::new(&failed.code, &failed.message, failed.retryable);
                failure.retry_after =
                    failed.retry_after.map(|after| to_duration("failed.retry_after", after)).transpose()?;
                Self::Failed(failure)
            }
            settlement::Outcome::Released(released) => {
                Self::Released { reason: stored_text(&released.reason, MAX_ERROR_CHARS) }
            }
            settlement::Outcome::Snoozed(snoozed) => {
                let duration = snoozed.duration.ok_or_else(|| Invalid::new("snoozed.duration", "is required"))?;
                Self::Snoozed(to_duration("snoozed.duration", duration)?)
            }
        })
    }
}

impl TryFrom<v1::Succeeded> for Success {
    type Error = Invalid;

    fn try_from(success: v1::Succeeded) -> Result<Self, Invalid> {
        let follow_ups = success.follow_ups.into_iter().enumerate().map(|(at, job)| {
            NewJob::try_from(job).map_err(|invalid| invalid.within(&format!("succeeded.follow_ups[{at}]")))
        });
        Ok(Self { result: success.result, effect: success.effect, follow_ups: follow_ups.collect::<Result<_, _>>()? })
    }
}

impl From<Outcome> for settlement::Outcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Succeeded(success) => Self::Succeeded(v1::Succeeded {
                result: success.result,
                effect: success.effect,
                follow_ups: success.follow_ups.into_iter().map(Into::into).collect(),
            }),
            Outcome::Failed(failure) => Self::Failed(v1::Failed {
                code: failure.code,
                message: failure.message,
                retryable: failure.retryable,
                retry_after: failure.retry_after.map(millis),
            }),
            Outcome::Released { reason } => Self::Released(v1::Released { reason }),
            Outcome::Snoozed(duration) => Self::Snoozed(v1::Snoozed { duration: Some(millis(duration)) }),
        }
    }
}
