//! One open stream and what was said on it.

use std::collections::VecDeque;
use std::time::Duration;

use queue_proto::v1::{WorkRequest, WorkResponse, work_request};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

/// Messages that wait for the connection. Few: what waits here is as good as not sent.
pub(crate) const REQUEST_BUFFER: usize = 16;
/// Heartbeats that are remembered until they are answered; older ones can only be answered too late to matter.
const MAX_UNANSWERED_BEATS: usize = 64;

/// Shortest heartbeat interval and lease time that a scheduler may ask for.
pub(crate) const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// A stream that the scheduler has welcomed.
pub(crate) struct Stream {
    pub(crate) requests: mpsc::Sender<WorkRequest>,
    pub(crate) responses: Streaming<WorkResponse>,
    pub(crate) url: String,
    pub(crate) opened: Duration,
    /// When the scheduler last said anything.
    pub(crate) heard: Duration,
    /// When we last did.
    pub(crate) spoke: Duration,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) next_heartbeat: Duration,
    pub(crate) said_draining: bool,
    /// A Hello was said to open another one, and may have been heard: what it did not list must not be started any more.
    pub(crate) sealed: bool,
    // Slots promised on this stream, in all, and grants that used one.
    credit: u64,
    granted: u64,
    sequence: u64,
    unanswered: VecDeque<(u64, Duration)>,
}

impl Stream {
    pub(crate) fn new(
        (requests, responses): (mpsc::Sender<WorkRequest>, Streaming<WorkResponse>),
        url: String,
        heartbeat_interval: Duration,
        now: Duration,
    ) -> Self {
        Self {
            requests,
            responses,
            url,
            opened: now,
            heard: now,
            spoke: now,
            heartbeat_interval,
            next_heartbeat: now,
            said_draining: false,
            sealed: false,
            credit: 0,
            granted: 0,
            sequence: 0,
            unanswered: VecDeque::new(),
        }
    }

    /// Slots promised and not yet used by a grant.
    pub(crate) fn outstanding(&self) -> usize {
        usize::try_from(self.credit.saturating_sub(self.granted)).unwrap_or(usize::MAX)
    }

    /// Promises more slots; returns the total to send.
    pub(crate) fn promise(&mut self, slots: usize) -> u64 {
        self.credit += slots as u64;
        self.credit
    }

    /// A grant used a promise.
    pub(crate) fn use_promise(&mut self) {
        self.granted += 1;
    }

    /// Numbers a heartbeat that is sent now.
    pub(crate) fn beat(&mut self, now: Duration) -> u64 {
        self.sequence += 1;
        self.next_heartbeat = now + self.heartbeat_interval;
        self.unanswered.push_back((self.sequence, now));
        if self.unanswered.len() > MAX_UNANSWERED_BEATS {
            self.unanswered.pop_front();
        }
        self.sequence
    }

    /// Follows the pace that the scheduler asks for in answer to a heartbeat; never slower than the interval.
    pub(crate) fn pace(&mut self, sequence: u64, next: Duration, now: Duration) {
        if sequence == self.sequence {
            self.next_heartbeat = now + next.clamp(MIN_INTERVAL, self.heartbeat_interval);
        }
    }

    /// When the heartbeat with that number was sent. Forgets it and those before it.
    pub(crate) fn answered(&mut self, sequence: u64) -> Option<Duration> {
        let at = self.unanswered.iter().position(|(number, _)| *number == sequence)?;
        self.unanswered.drain(..=at).next_back().map(|(_, sent)| sent)
    }
}

/// The next message of a stream, if there is one; waits for ever otherwise.
pub(crate) async fn receive(stream: &mut Option<Stream>) -> Result<Option<WorkResponse>, Status> {
    match stream {
        Some(stream) => stream.responses.message().await,
        None => std::future::pending().await,
    }
}

/// Returns once a stream whose buffer was full has room again.
pub(crate) async fn room(full: Option<mpsc::Sender<WorkRequest>>) {
    match full {
        Some(requests) => drop(requests.reserve().await),
        None => std::future::pending().await,
    }
}

pub(crate) fn request(message: work_request::Message) -> WorkRequest {
    WorkRequest { message: Some(message) }
}
