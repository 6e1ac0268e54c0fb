//! Opens streams: one address after the other, with pauses that grow.

use std::time::Duration;

use client::{Connection, WorkAddress};
use queue_proto::v1::{self, WorkRequest, WorkResponse, work_request, work_response};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::{Status, Streaming};

use crate::clock;
use crate::stream::{REQUEST_BUFFER, request};
use crate::timing::{Timing, pause};

/// Opens one stream at a time. Does nothing until it is told to.
pub(crate) struct Dialer {
    addresses: Vec<WorkAddress>,
    // Of the address that is or was tried last.
    at: usize,
    failures: u32,
    timing: Timing,
    max_message_bytes: usize,
    state: State,
}

enum State {
    Idle,
    Waiting(Duration),
    Connecting(JoinHandle<Result<Connection, client::Error>>),
    Opening(JoinHandle<Result<Opened, Status>>),
}

/// What the dialer came to.
pub(crate) enum Step {
    /// It is connected and needs a Hello to go on.
    Connected(Connection),
    /// The scheduler has sent its Welcome.
    Opened(Box<Opened>),
    /// It failed and waits to be told what next.
    Failed(Status),
}

/// A welcomed stream.
pub(crate) struct Opened {
    pub(crate) requests: mpsc::Sender<WorkRequest>,
    pub(crate) responses: Streaming<WorkResponse>,
    pub(crate) welcome: v1::Welcome,
    /// When the Hello was sent, or before.
    pub(crate) hello_at: Duration,
}

impl Dialer {
    /// Starts with any of the addresses, so that workers spread over them.
    pub(crate) fn new(addresses: Vec<WorkAddress>, timing: Timing, max_message_bytes: usize, chance: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "few")]
        let at = (addresses.len() as f64 * chance) as usize;
        Self { addresses, at, failures: 0, timing, max_message_bytes, state: State::Idle }
    }

    /// Whether it does nothing.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Whether a Hello is on its way.
    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.state, State::Opening(_))
    }

    /// The address that was tried last.
    pub(crate) fn url(&self) -> &str {
        self.addresses.get(self.at % self.addresses.len()).map_or("", WorkAddress::url)
    }

    /// Counts a stream that could not be opened or did not live long.
    pub(crate) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// A stream has lived: the next pause is a short one.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Tries the next address after a pause, unless it is at work already.
    pub(crate) fn start(&mut self, now: Duration) {
        self.start_at(now + pause(&self.timing, self.failures, rand::random()));
    }

    /// Tries the next address at that time, unless it is at work already.
    pub(crate) fn start_at(&mut self, at: Duration) {
        if self.is_idle() {
            self.state = State::Waiting(at);
        }
    }

    /// Stops, unless a Hello is on its way: that may already have been heard.
    pub(crate) fn stop(&mut self) {
        match &self.state {
            State::Opening(_) => return,
            State::Connecting(task) => task.abort(),
            State::Idle | State::Waiting(_) => {}
        }
        self.state = State::Idle;
    }

    /// Stops, also if a Hello is on its way: the session that it is for is over.
    pub(crate) fn reset(&mut self) {
        if let State::Opening(task) = &self.state {
            task.abort();
            self.state = State::Idle;
        }
        self.stop();
    }

    /// Goes on with a Hello.
    pub(crate) fn open(&mut self, connection: Connection, hello: v1::Hello) {
        let open = open(connection, hello, self.max_message_bytes);
        let bound = self.timing.open;
        self.state = State::Opening(tokio::spawn(async move {
            let late = |_| Status::deadline_exceeded(format!("no welcome within {bound:?}"));
            tokio::time::timeout(bound, open).await.map_err(late)?
        }));
    }

    /// Goes on until there is something to decide. May be dropped and called again.
    pub(crate) async fn step(&mut self) -> Step {
        loop {
            match &mut self.state {
                State::Idle => std::future::pending::<()>().await,
                State::Waiting(until) => {
                    tokio::time::sleep(until.saturating_sub(clock::now())).await;
                    self.at = (self.at + 1) % self.addresses.len();
                    let address = self.addresses[self.at].clone();
                    self.state = State::Connecting(tokio::spawn(async move { address.connect().await }));
                }
                State::Connecting(task) => {
                    let result = task.await;
                    self.state = State::Idle;
                    return match result {
                        Ok(Ok(connection)) => Step::Connected(connection),
                        Ok(Err(error)) => Step::Failed(Status::unavailable(error.to_string())),
                        Err(error) => Step::Failed(Status::internal(error.to_string())),
                    };
                }
                State::Opening(task) => {
                    let result = task.await;
                    self.state = State::Idle;
                    return match result {
                        Ok(Ok(opened)) => Step::Opened(Box::new(opened)),
                        Ok(Err(status)) => Step::Failed(status),
                        Err(error) => Step::Failed(Status::internal(error.to_string())),
                    };
                }
            }
        }
    }
}

async fn open(connection: Connection, hello: v1::Hello, max_message_bytes: usize) -> Result<Opened, Status> {
    let (requests, receiver) = mpsc::channel(REQUEST_BUFFER);
    let hello_at = clock::now();
    let hello = request(work_request::Message::Hello(hello));
    requests.try_send(hello).map_err(|_| Status::internal("the first message found no room"))?;
    let mut responses = connection.work_stream(receiver, max_message_bytes).await?;
    let first = responses.message().await?.and_then(|response| response.message);
    match first {
        Some(work_response::Message::Welcome(welcome)) => Ok(Opened { requests, responses, welcome, hello_at }),
        Some(_) => Err(Status::internal("the first answer of the scheduler is no welcome")),
        None => Err(Status::unavailable("the scheduler closed the stream without a welcome")),
    }
}
