//! The worker's service: welcomes streams and hands each to a task of its own.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use queue_core::{AttemptEnd, MAX_CAPACITY};
use queue_proto::v1::work_request::Message as Request;
use queue_proto::v1::work_response::Message as Response;
use queue_proto::v1::work_service_server::WorkService;
use queue_proto::{lease_ref, millis, v1};
use queue_store::{
    HeldLease, Hint, Owner, Registry, SchedulerId, Session, Store, StoreError, Transaction, Unheld, close_session,
    dead_sessions, held_leases, hello, take_back,
};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Response as Answer, Status, Streaming};

use crate::handshake::Opening;
use crate::ready::Ready;
use crate::session::{OUTBOUND, SessionStream};
use crate::timing::{SILENCE, Timing};
use crate::{batch, dispatcher, renew_writer, settle_writer, status};

/// Sent to workers.
const BUILD: &str = concat!("scheduler ", env!("CARGO_PKG_VERSION"));

/// What all streams share.
pub struct Parts {
    /// The database.
    pub store: Store,
    /// Names of queues and kinds.
    pub registry: Arc<Registry>,
    /// This scheduler.
    pub scheduler: SchedulerId,
    /// Intervals.
    pub timing: Timing,
    /// Bound on payloads, results and effects.
    pub max_payload_bytes: usize,
    /// Gives out jobs.
    pub dispatcher: dispatcher::Handle,
    /// Is told what is ready again.
    pub ready: Ready,
    /// Sessions that are opened side by side: hundreds come at once after an outage, and renewals must not wait for them.
    pub doorway: Semaphore,
    /// Renews sessions.
    pub renewer: renew_writer::Handle,
    /// Settles leases.
    pub settler: settle_writer::Handle,
    /// Takes leases back.
    pub take_back: crate::take_back::Handle,
}

impl Parts {
    /// Closes a session whose worker said goodbye; what it still held is released.
    pub async fn close_session(&self, owner: Owner) {
        if let Err(error) = self.store.within(self.release_and_close(owner)).await {
            // It expires by itself.
            batch::complain("closing a session", &error);
        }
    }

    async fn release_and_close(&self, owner: Owner) -> Result<(), StoreError> {
        let mut conn = self.store.vital().await?;
        let held = held_leases(&mut conn, &[owner.session_no]).await?;
        let mut leases: Vec<Unheld> =
            held.iter().map(|lease| Unheld { job: lease.job, token: lease.token, owner }).collect();
        leases.sort_unstable();
        let mut tx = Transaction::begin(&mut conn).await?;
        let low = |lane| self.ready.low(lane);
        let released = take_back(tx.conn(), &leases, AttemptEnd::Released, "the worker said goodbye", &low).await?;
        close_session(tx.conn(), owner).await?;
        tx.commit().await?;
        self.ready.tell(released.leases.into_iter().map(|(_, _, lane)| Hint::anywhere(lane)));
        Ok(())
    }

    /// Why a stream has lost its seat.
    pub async fn unseated(&self, owner: Owner) -> Status {
        if self.dispatcher.is_replaced(owner) {
            return status::superseded();
        }
        let dead = async { dead_sessions(&mut *self.store.vital().await?, &[owner.session_no]).await };
        match self.store.within(dead).await {
            Ok(dead) if dead.is_empty() => status::superseded(),
            Ok(_) => status::expired(),
            Err(error) => status::store(&error),
        }
    }

    /// Takes the session over, and compares what its worker lists with what the database says.
    async fn open(&self, opening: &Opening) -> Result<(Owner, Vec<v1::LeaseRef>), Status> {
        let crowd = |_| Status::unavailable("too many workers connect at once; connect again");
        let _turn = timeout(SILENCE, self.doorway.acquire()).await.map_err(crowd)?;
        // Boxed, and made when its turn has come: of thousands that wait each would have room for all of it.
        let opened = Box::pin(self.store.within(self.take_over(opening))).await.map_err(|error| {
            batch::complain("opening a session", &error);
            status::store(&error)
        })?;
        let Some((owner, held)) = opened else { return Err(status::expired()) };
        let mut lost = opening.held.clone();
        for lease in held {
            if !lost.remove(&(lease.job, lease.token)) {
                self.take_back.undelivered(owner, lease.job, lease.token);
            }
        }
        Ok((owner, lost.into_iter().map(lease_ref).collect()))
    }

    async fn take_over(&self, opening: &Opening) -> Result<Option<(Owner, Vec<HeldLease>)>, StoreError> {
        let mut conn = self.store.vital().await?;
        let Session::Open(owner) = hello(&mut conn, self.scheduler, &opening.hello, self.timing.ttl).await? else {
            return Ok(None);
        };
        let held = held_leases(&mut conn, &[owner.session_no]).await?;
        Ok(Some((owner, held)))
    }
}

/// The service.
pub struct Work {
    /// What all streams share.
    pub parts: Arc<Parts>,
    /// Tasks of the streams.
    pub streams: TaskTracker,
    /// Fires when the scheduler drains.
    pub drain: CancellationToken,
    /// Fires when the time for that is over.
    pub closed: CancellationToken,
}

#[tonic::async_trait]
impl WorkService for Work {
    type WorkStream = Pin<Box<dyn Stream<Item = Result<v1::WorkResponse, Status>> + Send>>;

    async fn work(
        &self,
        request: tonic::Request<Streaming<v1::WorkRequest>>,
    ) -> Result<Answer<Self::WorkStream>, Status> {
        if self.drain.is_cancelled() {
            return Err(Status::unavailable("the scheduler is stopping: connect to another one"));
        }
        let mut inbound = request.into_inner();
        let silent = |_| Status::deadline_exceeded("no hello came within 6 s");
        let first = timeout(SILENCE, inbound.message()).await.map_err(silent)??;
        let Some(Request::Hello(hello)) = first.and_then(|first| first.message) else {
            return Err(Status::invalid_argument("hello: must be the first message"));
        };
        let opening = Opening::check(hello, self.parts.max_payload_bytes)
            .map_err(|invalid| status::invalid(&invalid.within("hello")))?;
        let (owner, lost) = self.parts.open(&opening).await?;
        tracing::info!(session.id = %opening.hello.id, session.no = owner.session_no, epoch = owner.epoch, worker = %opening.hello.name, "session opened");
        let (outbound, responses) = mpsc::channel(OUTBOUND);
        let welcome = v1::Welcome {
            heartbeat_interval: Some(millis(self.parts.timing.heartbeat)),
            lease_ttl: Some(millis(self.parts.timing.ttl)),
            server_build: BUILD.to_owned(),
            lost,
            max_payload_bytes: u32::try_from(self.parts.max_payload_bytes).unwrap_or(u32::MAX),
        };
        let welcome = v1::WorkResponse { message: Some(Response::Welcome(welcome)) };
        outbound
            .send(Box::new(Ok(welcome)))
            .await
            .map_err(|_| Status::unavailable("the worker has closed the stream"))?;
        let (grants_sender, grants) = mpsc::channel(MAX_CAPACITY as usize);
        self.parts.dispatcher.enter(owner, opening.wants, grants_sender);
        let stream = SessionStream {
            parts: self.parts.clone(),
            owner,
            id: opening.hello.id,
            worker: opening.hello.name,
            inbound,
            outbound,
            grants,
            max_message_bytes: opening.max_message_bytes,
            drain: self.drain.clone(),
            closed: self.closed.clone(),
        };
        self.streams.spawn(stream.run());
        Ok(Answer::new(Box::pin(ReceiverStream::new(responses).map(|message| *message))))
    }
}
