//! A worker that says exactly what the test wants it to: the bare stream.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use client::{ConnectOptions, v1};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::{Status, Streaming};
use v1::settlement::Outcome;
use v1::work_request::Message as Request;
use v1::work_response::Message as Response;

use crate::system::{PATIENCE, Scheduler};

const MAX_MESSAGE: usize = 4 << 20;

/// One stream. Sends no heartbeat unless told to.
pub struct Stream {
    requests: mpsc::Sender<v1::WorkRequest>,
    responses: Streaming<v1::WorkResponse>,
    pub welcome: v1::Welcome,
}

/// A greeting for the queue `default` and one kind, under a session id of its own.
pub fn hello(kind: &str) -> v1::Hello {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let mut session = [7; 16];
    session[0] = NEXT.fetch_add(1, Ordering::Relaxed);
    v1::Hello {
        worker_name: "bare".to_owned(),
        session_id: session.to_vec().into(),
        queues: vec!["default".to_owned()],
        kinds: vec![kind.to_owned()],
        capacity: 100,
        ..v1::Hello::default()
    }
}

impl Stream {
    /// Opens a stream and waits for the welcome.
    pub async fn open(scheduler: &Scheduler, hello: v1::Hello) -> Result<Self, Status> {
        let addresses = ConnectOptions::new([scheduler.url()]).work_addresses().expect("an address");
        let connection = addresses[0].connect().await.expect("connects");
        let (requests, receiver) = mpsc::channel(64);
        let first = v1::WorkRequest { message: Some(Request::Hello(hello)) };
        requests.send(first).await.expect("there is room");
        let mut responses = connection.work_stream(receiver, MAX_MESSAGE).await?;
        let welcome = loop {
            if let Some(Response::Welcome(welcome)) = next(&mut responses).await? {
                break welcome;
            }
        };
        Ok(Self { requests, responses, welcome })
    }

    /// Says something.
    pub async fn say(&self, message: Request) {
        self.requests.send(v1::WorkRequest { message: Some(message) }).await.expect("the stream is open");
    }

    /// Offers slots, so many in all.
    pub async fn credit(&self, total: u64) {
        self.say(Request::Credit(v1::Credit { total })).await;
    }

    /// Waits for one grant and acknowledges it.
    pub async fn grant(&mut self) -> v1::Grant {
        let grants = self.wait(|message| match message {
            Response::Grants(grants) => Some(grants.grants),
            _ => None,
        });
        let grant = grants.await.expect("a grant comes").into_iter().next().expect("it has a job");
        let leases = vec![lease(&grant)];
        self.say(Request::LeaseAck(v1::LeaseAck { leases })).await;
        grant
    }

    /// Sends a heartbeat with these leases; gives what the scheduler says is lost of them.
    pub async fn beat(&mut self, sequence: u64, leases: &[v1::LeaseRef]) -> Result<Vec<v1::LeaseRef>, Status> {
        let held = |lease: &v1::LeaseRef| v1::HeldLease { job_id: lease.job_id, token: lease.token, progress: None };
        let leases = leases.iter().map(held).collect();
        self.say(Request::Heartbeat(v1::Heartbeat { sequence, leases })).await;
        self.wait(|message| match message {
            Response::Renewed(renewed) if renewed.sequence == sequence => Some(renewed.lost),
            _ => None,
        })
        .await
    }

    /// Settles a lease and gives the answer.
    pub async fn settle(&mut self, lease: v1::LeaseRef, outcome: Outcome) -> v1::SettleAck {
        let settlement = v1::Settlement { job_id: lease.job_id, token: lease.token, outcome: Some(outcome) };
        self.say(Request::Settle(v1::Settle { settlements: vec![settlement] })).await;
        let acks = self.wait(|message| match message {
            Response::SettleAcks(acks) => acks.acks.into_iter().find(|ack| ack.job_id == lease.job_id),
            _ => None,
        });
        acks.await.expect("an answer comes")
    }

    /// How the scheduler ends the stream.
    pub async fn end(&mut self) -> Status {
        loop {
            if let Err(status) = next(&mut self.responses).await {
                return status;
            }
        }
    }

    async fn wait<T>(&mut self, wanted: impl Fn(Response) -> Option<T>) -> Result<T, Status> {
        loop {
            if let Some(found) = next(&mut self.responses).await?.and_then(&wanted) {
                return Ok(found);
            }
        }
    }
}

/// The lease of a grant.
pub fn lease(grant: &v1::Grant) -> v1::LeaseRef {
    v1::LeaseRef { job_id: grant.job_id, token: grant.token }
}

/// Every way to end an attempt.
pub fn every_outcome() -> [Outcome; 4] {
    let failed = v1::Failed { code: "c".to_owned(), message: "m".to_owned(), retryable: false, retry_after: None };
    [
        Outcome::Succeeded(v1::Succeeded { effect: Some("stale".into()), ..v1::Succeeded::default() }),
        Outcome::Failed(failed),
        Outcome::Released(v1::Released { reason: "r".to_owned() }),
        Outcome::Snoozed(v1::Snoozed { duration: Duration::from_secs(1).try_into().ok() }),
    ]
}

async fn next(responses: &mut Streaming<v1::WorkResponse>) -> Result<Option<Response>, Status> {
    let message = timeout(PATIENCE, responses.message()).await.expect("the scheduler says something")?;
    Ok(message.ok_or_else(|| Status::cancelled("the stream ended"))?.message)
}
