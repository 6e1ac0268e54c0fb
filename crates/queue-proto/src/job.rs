//! Jobs to be enqueued, and the states of stored ones.

use std::collections::{BTreeMap, HashMap};

use queue_core::{
    AttemptEnd, Headers, IdempotencyKey, Invalid, JobState, KindName, NewJob, Priority, QueueName, RetryOverrides,
    RetryPolicy, Start,
};

use crate::duration::from_timestamp;
use crate::{millis, to_duration, to_timestamp, v1};

impl TryFrom<v1::NewJob> for NewJob {
    type Error = Invalid;

    /// Checks everything but the bound on the payload, which the installation sets.
    fn try_from(job: v1::NewJob) -> Result<Self, Invalid> {
        Ok(Self {
            queue: QueueName::new(&job.queue)?,
            kind: KindName::new(&job.kind)?,
            payload: job.payload,
            headers: Headers::new(BTreeMap::from_iter(job.headers))?,
            key: job.idempotency_key.as_deref().map(IdempotencyKey::new).transpose()?,
            priority: job.priority.map(Priority::try_from).transpose()?.unwrap_or_default(),
            start: job.start.map(Start::try_from).transpose()?.unwrap_or_default(),
            retry: job
                .retry
                .map(RetryOverrides::try_from)
                .transpose()
                .map_err(|invalid| invalid.within("retry"))?
                .unwrap_or_default(),
            timeout: job.timeout.map(|timeout| to_duration("timeout", timeout)).transpose()?,
            traceparent: job.traceparent,
        })
    }
}

impl From<NewJob> for v1::NewJob {
    fn from(job: NewJob) -> Self {
        Self {
            queue: job.queue.as_str().to_owned(),
            kind: job.kind.as_str().to_owned(),
            payload: job.payload,
            headers: HashMap::from_iter(job.headers.into_entries()),
            idempotency_key: job.key.map(|key| key.as_str().to_owned()),
            priority: Some(job.priority.get().into()),
            start: match job.start {
                Start::Now => None,
                Start::After(delay) => Some(v1::new_job::Start::Delay(millis(delay))),
                Start::At(micros) => Some(v1::new_job::Start::RunAt(to_timestamp(micros))),
            },
            retry: (job.retry != RetryOverrides::default()).then(|| job.retry.into()),
            timeout: job.timeout.map(millis),
            traceparent: job.traceparent,
        }
    }
}

impl TryFrom<v1::new_job::Start> for Start {
    type Error = Invalid;

    fn try_from(start: v1::new_job::Start) -> Result<Self, Invalid> {
        Ok(match start {
            v1::new_job::Start::Delay(delay) => Self::After(to_duration("delay", delay)?),
            v1::new_job::Start::RunAt(time) => Self::At(from_timestamp("run_at", time)?),
        })
    }
}

impl TryFrom<v1::RetryPolicy> for RetryOverrides {
    type Error = Invalid;

    fn try_from(retry: v1::RetryPolicy) -> Result<Self, Invalid> {
        Self {
            max_attempts: retry.max_attempts,
            max_lease_losses: retry.max_lease_losses,
            backoff_base: retry.backoff_base.map(|base| to_duration("backoff_base", base)).transpose()?,
            backoff_factor: retry.backoff_factor,
            backoff_cap: retry.backoff_cap.map(|cap| to_duration("backoff_cap", cap)).transpose()?,
            jitter: retry.jitter,
        }
        .checked()
    }
}

impl From<RetryOverrides> for v1::RetryPolicy {
    fn from(retry: RetryOverrides) -> Self {
        Self {
            max_attempts: retry.max_attempts,
            max_lease_losses: retry.max_lease_losses,
            backoff_base: retry.backoff_base.map(millis),
            backoff_factor: retry.backoff_factor,
            backoff_cap: retry.backoff_cap.map(millis),
            jitter: retry.jitter,
        }
    }
}

impl From<RetryPolicy> for v1::RetryPolicy {
    fn from(policy: RetryPolicy) -> Self {
        Self {
            max_attempts: Some(policy.max_attempts),
            max_lease_losses: Some(policy.max_lease_losses),
            backoff_base: Some(millis(policy.backoff_base)),
            backoff_factor: Some(policy.backoff_factor),
            backoff_cap: Some(millis(policy.backoff_cap)),
            jitter: Some(policy.jitter),
        }
    }
}

impl From<JobState> for v1::JobState {
    fn from(state: JobState) -> Self {
        match state {
            JobState::Scheduled => Self::Scheduled,
            JobState::Ready => Self::Ready,
            JobState::Leased => Self::Leased,
            JobState::Succeeded => Self::Succeeded,
            JobState::Dead => Self::Dead,
            JobState::Cancelled => Self::Cancelled,
        }
    }
}

impl From<AttemptEnd> for v1::AttemptEnd {
    fn from(end: AttemptEnd) -> Self {
        match end {
            AttemptEnd::Succeeded => Self::Succeeded,
            AttemptEnd::Failed => Self::Failed,
            AttemptEnd::Lost => Self::Lost,
            AttemptEnd::Released => Self::Released,
            AttemptEnd::Snoozed => Self::Snoozed,
            AttemptEnd::Undelivered => Self::Undelivered,
            AttemptEnd::TimedOut => Self::TimedOut,
        }
    }
}
