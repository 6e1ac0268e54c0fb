//! The producers' service.

use queue_core::{Invalid, JobId, MAX_BATCH, MAX_BATCH_BYTES, NewJob, QueueName};
use queue_proto::v1::queue_service_server::QueueService;
use queue_proto::{millis, to_timestamp, v1};
use queue_store::{AttemptRecord, Enqueued, JobRecord, QueueCounts, Store};
use tonic::{Request, Response, Status};

use crate::enqueue_writer::{Answer, EnqueueWriter};
use crate::grants::headers;
use crate::{metrics, status};

/// Queues that one call may name.
const MAX_NAMED_QUEUES: usize = 1_000;

/// The service.
pub struct Queues {
    /// Stores jobs.
    pub writer: EnqueueWriter,
    /// For look-ups.
    pub store: Store,
    /// Bound on payloads.
    pub max_payload_bytes: usize,
}

impl Queues {
    fn check(&self, job: v1::NewJob, traceparent: Option<&str>) -> Result<NewJob, Invalid> {
        let mut job = NewJob::try_from(job)?.checked(self.max_payload_bytes)?;
        if job.traceparent.is_none() {
            job.traceparent = traceparent.map(str::to_owned);
        }
        Ok(job)
    }
}

#[tonic::async_trait]
impl QueueService for Queues {
    async fn enqueue(&self, request: Request<v1::EnqueueRequest>) -> Result<Response<v1::EnqueueResponse>, Status> {
        let traceparent = trace(&request);
        let job = request.into_inner().job.ok_or_else(|| Status::invalid_argument("job: is required"))?;
        let job = self.check(job, traceparent.as_deref()).map_err(|invalid| status::invalid(&invalid.within("job")))?;
        let answer = self.writer.enqueue(vec![job]).await?.pop();
        metrics::enqueued(answer.iter());
        answer.ok_or_else(|| Status::internal("an answer is missing"))?.and_then(response).map(Response::new)
    }

    async fn enqueue_batch(
        &self,
        request: Request<v1::EnqueueBatchRequest>,
    ) -> Result<Response<v1::EnqueueBatchResponse>, Status> {
        let traceparent = trace(&request);
        let jobs = request.into_inner().jobs;
        if jobs.is_empty() || jobs.len() > MAX_BATCH {
            return Err(Status::invalid_argument(format!(
                "jobs: must have 1 to {MAX_BATCH} entries, has {}",
                jobs.len()
            )));
        }
        if jobs.iter().map(|job| job.payload.len()).sum::<usize>() > MAX_BATCH_BYTES {
            return Err(Status::invalid_argument(format!(
                "jobs: has more than {MAX_BATCH_BYTES} bytes of payloads in all"
            )));
        }
        let mut checked = Vec::with_capacity(jobs.len());
        let mut refused: Vec<Option<Status>> = Vec::with_capacity(jobs.len());
        for (at, job) in jobs.into_iter().enumerate() {
            match self.check(job, traceparent.as_deref()) {
                Ok(job) => {
                    checked.push(job);
                    refused.push(None);
                }
                Err(invalid) => refused.push(Some(status::invalid(&invalid.within(&format!("jobs[{at}]"))))),
            }
        }
        let answers = if checked.is_empty() { Vec::new() } else { self.writer.enqueue(checked).await? };
        metrics::enqueued(answers.iter());
        let mut answers = answers.into_iter();
        let results = refused.into_iter().map(|refused| {
            let answer = refused.map_or_else(
                || answers.next().unwrap_or_else(|| Err(Status::internal("an answer is missing"))).and_then(response),
                Err,
            );
            v1::EnqueueResult {
                result: Some(match answer {
                    Ok(enqueued) => v1::enqueue_result::Result::Enqueued(enqueued),
                    Err(status) => v1::enqueue_result::Result::Error(v1::EnqueueError {
                        code: status.code().into(),
                        message: status.message().to_owned(),
                    }),
                }),
            }
        });
        Ok(Response::new(v1::EnqueueBatchResponse { results: results.collect() }))
    }

    async fn get_job(&self, request: Request<v1::GetJobRequest>) -> Result<Response<v1::GetJobResponse>, Status> {
        let job = JobId::try_from(request.into_inner().job_id).map_err(|invalid| status::invalid(&invalid))?;
        let found = async { queue_store::job(&mut *self.store.read().await?, job).await };
        let found = self.store.within(found).await.map_err(|error| status::store(&error))?;
        let found = found.ok_or_else(|| Status::not_found(format!("job_id: there is no job {job}")))?;
        Ok(Response::new(v1::GetJobResponse { job: Some(stored(found)) }))
    }

    async fn get_queue_stats(
        &self,
        request: Request<v1::GetQueueStatsRequest>,
    ) -> Result<Response<v1::GetQueueStatsResponse>, Status> {
        let queues = request.into_inner().queues;
        if queues.len() > MAX_NAMED_QUEUES {
            return Err(Status::invalid_argument(format!("queues: has more than {MAX_NAMED_QUEUES} entries")));
        }
        for queue in &queues {
            QueueName::new(queue).map_err(|invalid| status::invalid(&Invalid::new("queues", invalid.problem)))?;
        }
        let counts = async { queue_store::queue_counts(&mut *self.store.read().await?, &queues).await };
        let counts = self.store.within(counts).await.map_err(|error| status::store(&error))?;
        Ok(Response::new(v1::GetQueueStatsResponse { queues: counts.into_iter().map(stats).collect() }))
    }
}

/// The trace context that jobs carry: of a span of this call where traces are exported, else the caller's own.
fn trace<T>(request: &Request<T>) -> Option<String> {
    let given = request.metadata().get("traceparent").and_then(|given| given.to_str().ok());
    let given = given.filter(|given| queue_core::is_traceparent(given));
    let span = tracing::info_span!("enqueue");
    if let Some(given) = given {
        telemetry::set_parent(&span, given);
    }
    span.in_scope(telemetry::current_traceparent).or_else(|| given.map(str::to_owned))
}

fn response(answer: Enqueued) -> Result<v1::EnqueueResponse, Status> {
    match answer {
        Enqueued::New(job) => Ok(v1::EnqueueResponse { job_id: job.get(), duplicate: false }),
        Enqueued::Existing(job) => Ok(v1::EnqueueResponse { job_id: job.get(), duplicate: true }),
        Enqueued::Conflict(job) => Err(Status::already_exists(format!(
            "idempotency_key: belongs to job {job}, which has another queue, kind or payload"
        ))),
    }
}

fn stats(counts: QueueCounts) -> v1::QueueStats {
    v1::QueueStats {
        queue: counts.queue,
        scheduled: counts.scheduled,
        ready: counts.ready,
        leased: counts.leased,
        succeeded: counts.succeeded,
        dead: counts.dead,
        cancelled: counts.cancelled,
        oldest_ready_age: counts.oldest_ready_age.map(millis),
    }
}

fn stored(job: JobRecord) -> v1::Job {
    let mut message = v1::Job {
        job_id: job.job.get(),
        queue: job.queue,
        kind: job.kind,
        priority: job.priority.into(),
        payload: job.payload.into(),
        headers: headers(job.headers.as_ref()),
        idempotency_key: job.key,
        attempts_used: job.used.attempts,
        lease_losses: job.used.lease_losses,
        retry: Some(job.policy.into()),
        timeout: Some(millis(job.timeout)),
        enqueued_at: Some(to_timestamp(job.enqueued_at_us)),
        due_at: job.due_at_us.map(to_timestamp),
        finished_at: job.finished_at_us.map(to_timestamp),
        result: job.result.map(Into::into),
        effect: job.effect.map(Into::into),
        dead_reason: job.dead_reason.unwrap_or_default(),
        attempts: job.attempts.into_iter().map(attempt).collect(),
        parent_job_id: job.parent,
        ..v1::Job::default()
    };
    message.set_state(job.state.into());
    message
}

fn attempt(attempt: AttemptRecord) -> v1::Attempt {
    let mut message = v1::Attempt {
        number: attempt.number.try_into().unwrap_or_default(),
        token: attempt.token,
        error_code: attempt.code.unwrap_or_default(),
        error: attempt.error.unwrap_or_default(),
        worker: attempt.worker.unwrap_or_default(),
        started_at: Some(to_timestamp(attempt.started_at_us)),
        ended_at: Some(to_timestamp(attempt.ended_at_us)),
        ..v1::Attempt::default()
    };
    message.set_end(attempt.end.into());
    message
}

/// Answers that count as enqueued, for metrics.
pub fn is_new(answer: &Answer) -> bool {
    matches!(answer, Ok(Enqueued::New(_)))
}
