//! What is sent, what is sent again, and what an answer becomes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use client::{Client, ConnectOptions, Error, Secret};
use queue_core::{KindName, NewJob, QueueName};
use queue_proto::v1::queue_service_server::{QueueService, QueueServiceServer};
use queue_proto::v1::{self, EnqueueResponse};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Answers in turn with what was planned, and writes down what it was asked.
#[derive(Clone, Default)]
pub struct Played {
    plan: Arc<Mutex<VecDeque<Status>>>,
    asked: Arc<Mutex<Vec<(v1::NewJob, String)>>>,
}

#[tonic::async_trait]
impl QueueService for Played {
    async fn enqueue(&self, request: Request<v1::EnqueueRequest>) -> Result<Response<EnqueueResponse>, Status> {
        let header = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        let header = header.unwrap_or_default().to_owned();
        self.asked.lock().unwrap().push((request.into_inner().job.unwrap(), header));
        match self.plan.lock().unwrap().pop_front() {
            Some(status) => Err(status),
            None => Ok(Response::new(EnqueueResponse { job_id: 7, duplicate: false })),
        }
    }

    async fn enqueue_batch(
        &self,
        request: Request<v1::EnqueueBatchRequest>,
    ) -> Result<Response<v1::EnqueueBatchResponse>, Status> {
        let answer = |(at, job): (i64, v1::NewJob)| {
            let result = if job.kind == "bad" {
                v1::enqueue_result::Result::Error(v1::EnqueueError { code: 3, message: "jobs: bad".to_owned() })
            } else {
                v1::enqueue_result::Result::Enqueued(EnqueueResponse { job_id: at, duplicate: at == 3 })
            };
            v1::EnqueueResult { result: Some(result) }
        };
        let results = (1..).zip(request.into_inner().jobs).map(answer).collect();
        Ok(Response::new(v1::EnqueueBatchResponse { results }))
    }

    async fn get_job(&self, request: Request<v1::GetJobRequest>) -> Result<Response<v1::GetJobResponse>, Status> {
        Err(Status::not_found(format!("no job {}", request.into_inner().job_id)))
    }

    async fn get_queue_stats(
        &self,
        _: Request<v1::GetQueueStatsRequest>,
    ) -> Result<Response<v1::GetQueueStatsResponse>, Status> {
        Ok(Response::new(v1::GetQueueStatsResponse::default()))
    }
}

impl Played {
    async fn serve(statuses: impl IntoIterator<Item = Status>) -> (Self, String) {
        let played = Self { plan: Arc::new(Mutex::new(statuses.into_iter().collect())), ..Self::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = Server::builder().add_service(QueueServiceServer::new(played.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        (played, url)
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

fn job(kind: &str) -> NewJob {
    NewJob::new(QueueName::new("q").unwrap(), KindName::new(kind).unwrap(), "payload")
}

fn lost() -> [Status; 2] {
    [Status::unavailable("no database"), Status::unavailable("no database")]
}

#[tokio::test]
async fn a_job_without_key_is_never_sent_again_when_its_outcome_is_unknown() {
    let (played, url) = Played::serve(lost()).await;
    let client = Client::connect(&ConnectOptions::new([url])).await.unwrap();
    let error = client.enqueue(job("k")).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
    assert_eq!(played.asked(), 1);
}

#[tokio::test]
async fn a_job_with_a_key_is_sent_again_until_it_is_answered() {
    let (played, url) = Played::serve(lost()).await;
    let client = Client::connect(&ConnectOptions::new([url])).await.unwrap();
    let enqueued = client.enqueue(job("k").with_key("key").unwrap()).await.unwrap();
    assert_eq!((enqueued.job_id.get(), enqueued.duplicate, played.asked()), (7, false, 3));
}

#[tokio::test]
async fn a_refusal_is_not_repeated() {
    let (played, url) = Played::serve([Status::already_exists("idempotency_key: another payload")]).await;
    let client = Client::connect(&ConnectOptions::new([url])).await.unwrap();
    let error = client.enqueue(job("k").with_key("key").unwrap()).await.unwrap_err();
    assert!(matches!(&error, Error::Conflict(why) if why.contains("another payload")), "{error}");
    assert_eq!(played.asked(), 1);
}

#[tokio::test]
async fn a_scheduler_that_is_not_there_is_passed_over_also_without_a_key() {
    let (played, url) = Played::serve([]).await;
    let client = Client::lazy(&ConnectOptions::new(["http://127.0.0.1:9".to_owned(), url])).unwrap();
    assert_eq!(client.enqueue(job("k")).await.unwrap().job_id.get(), 7);
    assert_eq!(played.asked(), 1);
}

#[tokio::test]
async fn token_and_trace_context_travel() {
    let (played, url) = Played::serve([]).await;
    let options = ConnectOptions::new([url]).with_token(Some(Secret::new("t0ken")));
    let client = Client::connect(&options).await.unwrap();
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    client.enqueue(NewJob { traceparent: Some(traceparent.to_owned()), ..job("k") }).await.unwrap();
    let asked = played.asked.lock().unwrap();
    assert_eq!((asked[0].1.as_str(), asked[0].0.traceparent.as_deref()), ("Bearer t0ken", Some(traceparent)));
}

#[tokio::test]
async fn each_job_of_a_batch_has_its_own_answer() {
    let (_played, url) = Played::serve([]).await;
    let client = Client::connect(&ConnectOptions::new([url])).await.unwrap();
    let answers = client.enqueue_batch(vec![job("k"), job("bad"), job("k")]).await.unwrap();
    assert!(matches!(&answers[0], Ok(enqueued) if !enqueued.duplicate));
    assert!(matches!(&answers[1], Err(Error::Refused(_))));
    assert!(matches!(&answers[2], Ok(enqueued) if enqueued.duplicate));
    assert!(matches!(client.enqueue_batch(Vec::new()).await, Err(Error::Invalid(_))));
    assert!(matches!(client.enqueue_batch(vec![job("k"); 1_001]).await, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn a_job_that_is_not_there_is_told_apart() {
    let (_played, url) = Played::serve([]).await;
    let client = Client::connect(&ConnectOptions::new([url])).await.unwrap();
    assert!(matches!(client.job(5.try_into().unwrap()).await, Err(Error::NotFound(_))));
}

#[tokio::test]
async fn connecting_names_the_address_that_does_not_answer() {
    let error = Client::connect(&ConnectOptions::new(["http://127.0.0.1:9"])).await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable(why) if why.contains("127.0.0.1:9")), "{error}");
}
