//! Jobs as the tests enqueue and look at them.

use std::time::Duration;

use client::{Client, v1};
use queue_core::{JobId, KindName, NewJob, QueueName, RetryOverrides};
use testbed::eventually;
use v1::{AttemptEnd, JobState};

use crate::system::PATIENCE;

/// A job of the queue `default`.
pub fn job(kind: &str) -> NewJob {
    job_in("default", kind, "payload")
}

/// A job.
pub fn job_in(queue: &str, kind: &str, payload: &str) -> NewJob {
    let (queue, kind) = (QueueName::new(queue).expect("a name"), KindName::new(kind).expect("a name"));
    NewJob::new(queue, kind, payload.to_owned())
}

/// So many jobs alike.
pub fn jobs(kind: &str, count: usize) -> Vec<NewJob> {
    (0..count).map(|_| job(kind)).collect()
}

/// That job with a bound on its attempts and retries at once.
pub fn attempts(job: NewJob, max_attempts: u32) -> NewJob {
    let retry = RetryOverrides { max_attempts: Some(max_attempts), ..at_once() };
    NewJob { retry, ..job }
}

/// Retries without a delay.
pub fn at_once() -> RetryOverrides {
    RetryOverrides { backoff_base: Some(Duration::ZERO), ..RetryOverrides::default() }
}

/// Stores a job and gives its identity.
pub async fn enqueue(client: &Client, job: NewJob) -> JobId {
    client.enqueue(job).await.expect("is enqueued").job_id
}

/// Stores jobs, in batches as large as they may be.
pub async fn enqueue_all(client: &Client, jobs: Vec<NewJob>) -> Vec<JobId> {
    let mut ids = Vec::with_capacity(jobs.len());
    for batch in jobs.chunks(1_000) {
        let stored = client.enqueue_batch(batch.to_vec()).await.expect("the batch is taken");
        ids.extend(stored.into_iter().map(|stored| stored.expect("is enqueued").job_id));
    }
    ids
}

/// A job as it is stored.
pub async fn look(client: &Client, id: JobId) -> v1::Job {
    client.job(id).await.expect("is there")
}

/// Waits until a job is in that state.
pub async fn is(client: &Client, id: JobId, state: JobState) -> v1::Job {
    let what = format!("job {id} is {}", state.as_str_name());
    eventually(PATIENCE, &what, async || look(client, id).await.state() == state).await;
    look(client, id).await
}

/// How the attempts of a job ended, in their order.
pub fn ends(job: &v1::Job) -> Vec<AttemptEnd> {
    job.attempts.iter().map(v1::Attempt::end).collect()
}
