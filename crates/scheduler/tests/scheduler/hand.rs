//! A worker driven by hand: it says what a test lets it say, and nothing else.

use std::collections::VecDeque;
use std::time::Duration;

use queue_proto::v1::work_request::Message as Request;
use queue_proto::v1::work_response::Message as Response;
use queue_proto::v1::{self, settlement};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::setup::{PATIENCE, Scheduler};

/// Messages that wait for the transport.
const OUTBOUND: usize = 64;

/// One stream of a session.
pub struct Hand {
    pub hello: v1::Hello,
    pub welcome: v1::Welcome,
    requests: mpsc::Sender<v1::WorkRequest>,
    responses: Streaming<v1::WorkResponse>,
    /// Read while something else was waited for.
    stash: VecDeque<Response>,
    sequence: u64,
    credit: u64,
}

/// A greeting of a new session that has room for everything a test enqueues.
pub fn hello(queues: &[&str], kinds: &[&str]) -> v1::Hello {
    v1::Hello {
        worker_name: "hand".to_owned(),
        session_id: rand::random::<[u8; 16]>().to_vec().into(),
        queues: queues.iter().map(ToString::to_string).collect(),
        kinds: kinds.iter().map(ToString::to_string).collect(),
        capacity: 100,
        ..v1::Hello::default()
    }
}

/// Opens a stream with any first messages and hands both sides over.
pub async fn raw(
    scheduler: &Scheduler,
    first: Vec<Request>,
) -> Result<(mpsc::Sender<v1::WorkRequest>, Streaming<v1::WorkResponse>), Status> {
    let (requests, receiver) = mpsc::channel(OUTBOUND);
    for message in first {
        requests.send(v1::WorkRequest { message: Some(message) }).await.expect("there is room");
    }
    let mut client = scheduler.work();
    let opened = timeout(PATIENCE, client.work(ReceiverStream::new(receiver))).await;
    Ok((requests, opened.expect("an answer in time")?.into_inner()))
}

impl Hand {
    /// Opens a new session.
    pub async fn open(scheduler: &Scheduler, queues: &[&str], kinds: &[&str]) -> Self {
        Self::with(scheduler, hello(queues, kinds)).await.expect("the session opens")
    }

    /// Opens a stream with this greeting and waits for the Welcome.
    pub async fn with(scheduler: &Scheduler, hello: v1::Hello) -> Result<Self, Status> {
        let (requests, mut responses) = raw(scheduler, vec![Request::Hello(hello.clone())]).await?;
        let first = timeout(PATIENCE, responses.message()).await.expect("an answer in time")?;
        let Some(Response::Welcome(welcome)) = first.and_then(|first| first.message) else {
            panic!("the first answer is Welcome");
        };
        Ok(Self { hello, welcome, requests, responses, stash: VecDeque::new(), sequence: 0, credit: 0 })
    }

    /// The same session again, over another stream, with these leases.
    pub async fn again(&self, scheduler: &Scheduler, held: &[v1::Grant]) -> Result<Self, Status> {
        let leases = held.iter().map(lease).collect();
        Self::with(scheduler, v1::Hello { leases, ..self.hello.clone() }).await
    }

    pub async fn send(&self, message: Request) {
        // A stream that the scheduler has ended shows when it is read.
        let _ = self.requests.send(v1::WorkRequest { message: Some(message) }).await;
    }

    /// Raises the credits by so many jobs.
    pub async fn room(&mut self, jobs: u64) {
        self.credit += jobs;
        self.send(Request::Credit(v1::Credit { total: self.credit })).await;
    }

    /// Waits for one message of grants and acknowledges none.
    pub async fn some_grants(&mut self) -> Vec<v1::Grant> {
        let grants = self.wait(|message| match message {
            Response::Grants(grants) => Ok(grants.grants),
            other => Err(other),
        });
        grants.await
    }

    /// Waits for so many grants and acknowledges none.
    pub async fn grants(&mut self, count: usize) -> Vec<v1::Grant> {
        let mut grants = Vec::new();
        while grants.len() < count {
            grants.extend(self.some_grants().await);
        }
        assert_eq!(grants.len(), count, "no more than that");
        grants
    }

    /// Waits for so many grants and acknowledges each message of them at once, as workers do.
    pub async fn accept(&mut self, count: usize) -> Vec<v1::Grant> {
        let mut grants = Vec::new();
        while grants.len() < count {
            let more = self.some_grants().await;
            self.acknowledge(&more).await;
            grants.extend(more);
        }
        assert_eq!(grants.len(), count, "no more than that");
        grants
    }

    /// Asks for so many jobs, waits for them and acknowledges them.
    pub async fn take(&mut self, count: usize) -> Vec<v1::Grant> {
        self.room(count as u64).await;
        self.accept(count).await
    }

    /// Takes one job.
    pub async fn take_one(&mut self) -> v1::Grant {
        self.take(1).await.remove(0)
    }

    pub async fn acknowledge(&self, grants: &[v1::Grant]) {
        self.send(Request::LeaseAck(v1::LeaseAck { leases: grants.iter().map(lease).collect() })).await;
    }

    /// Sends a heartbeat and does not wait for its answer. Returns its number.
    pub async fn pulse(&mut self, held: &[v1::Grant]) -> u64 {
        self.sequence += 1;
        let leases =
            held.iter().map(|grant| v1::HeldLease { job_id: grant.job_id, token: grant.token, progress: None });
        self.send(Request::Heartbeat(v1::Heartbeat { sequence: self.sequence, leases: leases.collect() })).await;
        self.sequence
    }

    /// Sends a heartbeat and waits for its answer.
    pub async fn beat(&mut self, held: &[v1::Grant]) -> v1::Renewed {
        let sequence = self.pulse(held).await;
        self.wait(|message| match message {
            Response::Renewed(renewed) if renewed.sequence == sequence => Ok(renewed),
            other => Err(other),
        })
        .await
    }

    /// Settles and waits for the answer to this very settlement.
    pub async fn settle(&mut self, grant: &v1::Grant, outcome: settlement::Outcome) -> v1::SettleAck {
        self.settle_as(grant.job_id, grant.token, Some(outcome)).await
    }

    /// Settles under any job and token.
    pub async fn settle_as(&mut self, job_id: i64, token: i64, outcome: Option<settlement::Outcome>) -> v1::SettleAck {
        self.post(vec![v1::Settlement { job_id, token, outcome }]).await;
        let mut acks = self.acks(1).await;
        assert_eq!((acks[0].job_id, acks[0].token), (job_id, token));
        acks.remove(0)
    }

    /// Sends settlements and does not wait.
    pub async fn post(&self, settlements: Vec<v1::Settlement>) {
        self.send(Request::Settle(v1::Settle { settlements })).await;
    }

    /// Waits for the answers to so many settlements.
    pub async fn acks(&mut self, count: usize) -> Vec<v1::SettleAck> {
        let mut acks = Vec::new();
        while acks.len() < count {
            let more = self.wait(|message| match message {
                Response::SettleAcks(more) => Ok(more.acks),
                other => Err(other),
            });
            acks.extend(more.await);
        }
        assert_eq!(acks.len(), count, "no more than that");
        acks
    }

    /// Waits for a message that `wanted` takes; others are kept for later, except pings.
    pub async fn wait<T>(&mut self, wanted: impl Fn(Response) -> Result<T, Response>) -> T {
        let mut kept = VecDeque::new();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let message = match self.stash.pop_front() {
                Some(message) => message,
                None => timeout_at(deadline, self.read()).await.expect("a message in time").expect("the stream lives"),
            };
            match wanted(message) {
                Ok(found) => {
                    kept.append(&mut self.stash);
                    self.stash = kept;
                    return found;
                }
                Err(Response::Ping(_)) => {}
                Err(other) => kept.push_back(other),
            }
        }
    }

    /// Reads for so long and asserts that nothing but pings comes. For what must not happen there is no signal.
    pub async fn quiet(&mut self, span: Duration) {
        let deadline = Instant::now() + span;
        assert!(self.stash.is_empty(), "nothing was read before: {:?}", self.stash);
        while let Ok(message) = timeout_at(deadline, self.read()).await {
            let message = message.expect("the stream lives");
            assert!(matches!(message, Response::Ping(_)), "nothing but pings: {message:?}");
        }
    }

    /// Holds leases for so long, with heartbeats, none of which may report a loss.
    pub async fn hold(&mut self, held: &[v1::Grant], span: Duration) {
        let end = Instant::now() + span;
        while Instant::now() < end {
            assert_eq!(self.beat(held).await.lost, [], "nothing is lost");
            // A worker's pace: the heartbeat's interval.
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    /// Reads to the end of the stream; `None` if it ended without an error.
    pub async fn end(&mut self) -> Option<Status> {
        let reading = async {
            loop {
                match self.responses.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return None,
                    Err(status) => return Some(status),
                }
            }
        };
        timeout(PATIENCE, reading).await.expect("an end in time")
    }

    /// Closes the worker's side, as a process does that ends.
    pub fn close(self) {
        drop(self);
    }

    async fn read(&mut self) -> Result<Response, Status> {
        let message = self.responses.message().await?.ok_or_else(|| Status::cancelled("the stream has ended"))?;
        Ok(message.message.expect("a message that this test knows"))
    }
}

/// The lease that a grant stands for.
pub fn lease(grant: &v1::Grant) -> v1::LeaseRef {
    v1::LeaseRef { job_id: grant.job_id, token: grant.token }
}

/// A settlement to be sent with others.
pub fn settlement(grant: &v1::Grant, outcome: settlement::Outcome) -> v1::Settlement {
    v1::Settlement { job_id: grant.job_id, token: grant.token, outcome: Some(outcome) }
}

/// Done, with nothing to keep.
pub fn succeeded() -> settlement::Outcome {
    settlement::Outcome::Succeeded(v1::Succeeded::default())
}

/// Failed, with another attempt to come.
pub fn failed(message: &str) -> settlement::Outcome {
    let failed =
        v1::Failed { code: "test".to_owned(), message: message.to_owned(), retryable: true, retry_after: None };
    settlement::Outcome::Failed(failed)
}

/// Failed for good.
pub fn failed_for_good(message: &str) -> settlement::Outcome {
    let failed =
        v1::Failed { code: "test".to_owned(), message: message.to_owned(), retryable: false, retry_after: None };
    settlement::Outcome::Failed(failed)
}

/// Given back.
pub fn released(reason: &str) -> settlement::Outcome {
    settlement::Outcome::Released(v1::Released { reason: reason.to_owned() })
}
