//! Enqueuing.

use queue_core::{Invalid, JobId, MAX_BATCH, MAX_PAYLOAD_BYTES, NewJob};
use queue_proto::v1;
use queue_proto::v1::queue_service_client::QueueServiceClient;

use crate::client::MAX_ANSWER_BYTES;
use crate::repeat::Repeat;
use crate::{Client, Error};

/// A job that is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enqueued {
    /// The new job, or the first one with the same idempotency key.
    pub job_id: JobId,
    /// Whether a job with this idempotency key was there already.
    pub duplicate: bool,
}

impl Client {
    /// Enqueues a job; once this returns it is committed.
    ///
    /// A job with an idempotency key is sent again, a few times, if the answer is lost; one without a key is not.
    ///
    /// Errors: [`Error::Invalid`] and [`Error::Refused`] name the field, [`Error::Conflict`] if the key is another
    /// job's, [`Error::OutcomeUnknown`] without a key, [`Error::Overloaded`], [`Error::Unavailable`].
    pub async fn enqueue(&self, job: NewJob) -> Result<Enqueued, Error> {
        let job = job.checked(MAX_PAYLOAD_BYTES)?;
        let repeat = repeat_of(std::slice::from_ref(&job));
        let request = v1::EnqueueRequest { job: Some(job.into()) };
        let answer = self
            .call(repeat, |transport| {
                let request = request.clone();
                async move { QueueServiceClient::new(transport).enqueue(request).await }
            })
            .await?;
        answer.try_into()
    }

    /// Enqueues 1 to 1,000 jobs, at most 16 MiB in all, with one answer per job in their order.
    ///
    /// A job that is refused does not refuse its neighbours. The batch is sent again after a lost answer only if every
    /// job has an idempotency key.
    ///
    /// Errors: those of [`Client::enqueue`], of the call as a whole or of one job.
    pub async fn enqueue_batch(&self, jobs: Vec<NewJob>) -> Result<Vec<Result<Enqueued, Error>>, Error> {
        if jobs.is_empty() || jobs.len() > MAX_BATCH {
            return Err(Invalid::new("jobs", format!("must be 1 to {MAX_BATCH}, are {}", jobs.len())).into());
        }
        let repeat = repeat_of(&jobs);
        let sent = jobs.len();
        let request = v1::EnqueueBatchRequest { jobs: jobs.into_iter().map(Into::into).collect() };
        let answer = self
            .call(repeat, |transport| {
                let request = request.clone();
                async move {
                    QueueServiceClient::new(transport)
                        .max_decoding_message_size(MAX_ANSWER_BYTES)
                        .enqueue_batch(request)
                        .await
                }
            })
            .await?;
        if answer.results.len() != sent {
            return Err(Error::nonsense("a batch has another number of answers than jobs"));
        }
        Ok(answer.results.into_iter().map(one_result).collect())
    }
}

fn repeat_of(jobs: &[NewJob]) -> Repeat {
    if jobs.iter().all(|job| job.key.is_some()) { Repeat::Harmless } else { Repeat::OnlyIfUnsent }
}

fn one_result(result: v1::EnqueueResult) -> Result<Enqueued, Error> {
    match result.result {
        Some(v1::enqueue_result::Result::Enqueued(enqueued)) => enqueued.try_into(),
        Some(v1::enqueue_result::Result::Error(error)) => Err(Error::from_code(error.code, error.message)),
        None => Err(Error::nonsense("a job of a batch has no answer")),
    }
}

impl TryFrom<v1::EnqueueResponse> for Enqueued {
    type Error = Error;

    fn try_from(answer: v1::EnqueueResponse) -> Result<Self, Error> {
        let job_id = answer.job_id.try_into().map_err(|_| Error::nonsense("a job has no id"))?;
        Ok(Self { job_id, duplicate: answer.duplicate })
    }
}
