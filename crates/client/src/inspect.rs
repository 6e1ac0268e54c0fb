//! Looking at jobs and queues.

use queue_core::{JobId, QueueName};
use queue_proto::v1;
use queue_proto::v1::queue_service_client::QueueServiceClient;

use crate::client::MAX_ANSWER_BYTES;
use crate::repeat::Repeat;
use crate::{Client, Error};

impl Client {
    /// A job with its state, result and history.
    ///
    /// Errors: [`Error::NotFound`], [`Error::Unavailable`].
    pub async fn job(&self, id: JobId) -> Result<v1::Job, Error> {
        let answer = self
            .call(Repeat::Harmless, |transport| async move {
                QueueServiceClient::new(transport)
                    .max_decoding_message_size(MAX_ANSWER_BYTES)
                    .get_job(v1::GetJobRequest { job_id: id.get() })
                    .await
            })
            .await?;
        answer.job.ok_or_else(|| Error::nonsense("a job is missing"))
    }

    /// What these queues hold, or all if none is named; in the order of their names.
    pub async fn queue_stats(&self, queues: &[QueueName]) -> Result<Vec<v1::QueueStats>, Error> {
        let queues: Vec<_> = queues.iter().map(|queue| queue.as_str().to_owned()).collect();
        let answer = self
            .call(Repeat::Harmless, |transport| {
                let request = v1::GetQueueStatsRequest { queues: queues.clone() };
                async move {
                    QueueServiceClient::new(transport)
                        .max_decoding_message_size(MAX_ANSWER_BYTES)
                        .get_queue_stats(request)
                        .await
                }
            })
            .await?;
        Ok(answer.queues)
    }
}
