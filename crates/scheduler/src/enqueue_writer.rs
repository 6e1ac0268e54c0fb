//! The writer that stores jobs.
//!
//! While a batch is on its way, the next one gathers. One that is full already does not wait: it goes on a connection of its
//! own, so that one commits while the database works on the other.
//!
//! Jobs that free slots wait for are leased by the very statement that stores them: one commit until their handlers start.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use queue_core::{JobId, MAX_BATCH, NewJob, Start};
use queue_store::{Claimed, EnqueueRow, Enqueued, Hint, Lane, Line, Owner, Registry, Store, StoreError, enqueue_for};
use tokio::sync::{Mutex, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tonic::Status;

use crate::metrics::Writer;
use crate::ready::Ready;
use crate::{batch, metrics, promoter, status, take_back};

/// Requests that wait for the writer.
const QUEUED_REQUESTS: usize = 4_096;
/// Bytes of payloads that wait for the writer, in KiB: 256 MiB.
const QUEUED_KIB: usize = 256 << 10;
/// Batches on their way at a time. The second one keeps two cores busy; a third was not faster.
const WRITES: usize = 2;
/// How long the lane of a job may take to be registered, with the wait for others that are registered before it.
const LANE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a request waits for room before it is refused.
const ROOM_TIMEOUT: Duration = Duration::from_secs(5);
/// Tries of a batch that met a deadlock or the like.
const TRIES: usize = 3;

/// One job's answer.
pub type Answer = Result<Enqueued, Status>;

struct Request {
    rows: Vec<EnqueueRow>,
    answer: oneshot::Sender<Vec<Answer>>,
}

/// The way to the writer.
#[derive(Clone)]
pub struct EnqueueWriter {
    requests: mpsc::Sender<Request>,
    room: Arc<Semaphore>,
    registry: Arc<Registry>,
    /// Held while a lane is registered.
    registering: Arc<Mutex<()>>,
    store: Store,
}

impl EnqueueWriter {
    /// Prepares a writer; the returned task must be run.
    pub fn new(
        store: Store,
        registry: Arc<Registry>,
        ready: Ready,
        promoter: promoter::Handle,
        take_back: take_back::Handle,
    ) -> (Self, impl Future<Output = anyhow::Result<()>>) {
        let (requests, queue) = mpsc::channel(QUEUED_REQUESTS);
        let task = Task { store: store.clone(), ready, promoter, take_back };
        let room = Arc::new(Semaphore::new(QUEUED_KIB));
        let handle = Self { requests, room, registry, registering: Arc::default(), store };
        (handle, task.run(queue))
    }

    /// Stores jobs that were checked; answers one by one, after the commit.
    pub async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Answer>, Status> {
        let bytes: usize = jobs.iter().map(|job| job.payload.len()).sum();
        let kib = u32::try_from(1 + bytes / 1024).unwrap_or(u32::MAX);
        let full = || Status::resource_exhausted("the scheduler is overloaded; try again in a second");
        let _room =
            timeout(ROOM_TIMEOUT, self.room.acquire_many(kib)).await.map_err(|_| full())?.map_err(|_| full())?;
        let mut answers: Vec<Option<Answer>> = Vec::with_capacity(jobs.len());
        let mut rows = Vec::with_capacity(jobs.len());
        let lanes = self.lanes_or_refusals(&jobs).await;
        for (job, lane) in jobs.into_iter().zip(lanes) {
            answers.push(lane.as_ref().err().map(|status| Err(status.clone())));
            rows.extend(lane.ok().map(|lane| EnqueueRow { job, lane, parent: None }));
        }
        if !rows.is_empty() {
            let (answer, stored) = oneshot::channel();
            timeout(ROOM_TIMEOUT, self.requests.send(Request { rows, answer }))
                .await
                .map_err(|_| full())?
                .map_err(|_| Status::unavailable("the scheduler is stopping"))?;
            let stored = stored.await.map_err(|_| Status::unavailable("the scheduler is stopping"))?;
            let open = answers.iter_mut().filter(|answer| answer.is_none());
            open.zip(stored).for_each(|(answer, stored)| *answer = Some(stored));
        }
        let lost = || Err(Status::internal("an answer is missing"));
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect())
    }

    /// The lane of each job. A database that is away refuses only those whose lanes are new.
    async fn lanes_or_refusals(&self, jobs: &[NewJob]) -> Vec<Result<Lane, Status>> {
        let failed = match timeout(LANE_TIMEOUT, self.lanes(jobs)).await {
            Ok(Ok(lanes)) => {
                return lanes.into_iter().map(|lane| lane.map_err(|error| status::store(&error))).collect();
            }
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        let refusal = match failed {
            Some(error) if !error.is_unavailable() => status::store(&error),
            failed => {
                if let Some(error) = failed {
                    batch::complain("registering a lane", &error);
                }
                Status::unavailable("the database is not available; nothing was stored")
            }
        };
        jobs.iter().map(|job| self.registry.lane(job).ok_or_else(|| refusal.clone())).collect()
    }

    /// The lane of each job, registered where it is new and there is room for it.
    pub async fn lanes(&self, jobs: &[NewJob]) -> Result<Vec<Result<Lane, StoreError>>, StoreError> {
        let known = || jobs.iter().map(|job| self.registry.lane(job)).collect::<Option<Vec<Lane>>>();
        let found = |lanes: Vec<Lane>| lanes.into_iter().map(Ok).collect();
        if let Some(lanes) = known() {
            return Ok(found(lanes));
        }
        // One at a time: of the many first jobs of a new queue one registers the lane, and the others find it. Each on a
        // connection of its own, most would give up waiting for one.
        let _turn = self.registering.lock().await;
        if let Some(lanes) = known() {
            return Ok(found(lanes));
        }
        let jobs: Vec<&NewJob> = jobs.iter().collect();
        let registered = async { self.registry.register_all(&mut *self.store.read().await?, &jobs).await };
        self.store.within(registered).await?;
        Ok(jobs.into_iter().map(|job| self.registry.lane_or_full(job)).collect())
    }
}

struct Task {
    store: Store,
    ready: Ready,
    promoter: promoter::Handle,
    take_back: take_back::Handle,
}

/// Requests that wait for a connection.
#[derive(Default)]
struct Waiting {
    requests: Vec<Request>,
    rows: usize,
}

impl Waiting {
    fn push(&mut self, request: Request) {
        self.rows += request.rows.len();
        self.requests.push(request);
    }

    fn is_full(&self) -> bool {
        self.rows >= MAX_BATCH
    }
}

impl Task {
    async fn run(self, mut queue: mpsc::Receiver<Request>) -> anyhow::Result<()> {
        let mut lines: Vec<Line> = (0..WRITES).map(|_| self.store.enqueue_line()).collect();
        let (mut waiting, mut writes) = (Waiting::default(), FuturesUnordered::new());
        let mut open = true;
        loop {
            while !waiting.is_full()
                && let Ok(request) = queue.try_recv()
            {
                waiting.push(request);
            }
            if (waiting.is_full() || writes.is_empty() && waiting.rows > 0)
                && let Some(line) = lines.pop()
            {
                writes.push(self.write(line, std::mem::take(&mut waiting).requests));
                continue;
            }
            tokio::select! {
                request = queue.recv(), if open && !waiting.is_full() => match request {
                    Some(request) => waiting.push(request),
                    None => open = false,
                },
                Some(line) = writes.next() => lines.push(line),
                else => return Ok(()),
            }
        }
    }

    /// Stores requests and answers them.
    async fn write(&self, mut line: Line, requests: Vec<Request>) -> Line {
        let mut rows = Vec::new();
        let mut callers = Vec::with_capacity(requests.len());
        for request in requests {
            callers.push((request.rows.len(), request.answer));
            rows.extend(request.rows);
        }
        let mut answers = Vec::with_capacity(rows.len());
        for rows in rows.chunks(MAX_BATCH) {
            answers.extend(self.commit(&mut line, rows).await);
        }
        let mut answers = answers.into_iter();
        for (count, caller) in callers {
            // A caller that has gone away needs no answer; its jobs are stored all the same.
            let _ = caller.send(answers.by_ref().take(count).collect());
        }
        line
    }

    /// Stores a batch, splitting it around rows that the database refuses: one bad row never refuses its neighbours.
    async fn commit(&self, line: &mut Line, rows: &[EnqueueRow]) -> Vec<Answer> {
        let lanes: Vec<Lane> = rows.iter().map(|row| row.lane).collect();
        let due = rows.iter().all(|row| row.job.start == Start::Now);
        let slots = if due { self.ready.dispatcher.reserve(&lanes) } else { Vec::new() };
        let began = Instant::now();
        let stored = self.store.within(store_rows(line, rows, &slots)).await;
        if stored.is_err() {
            // What an unanswered commit leased no worker lists in its heartbeats: they bring it back.
            self.ready.dispatcher.failed_lease(&slots);
        }
        match stored {
            Ok((stored, leases)) => {
                metrics::committed(Writer::Enqueue, began);
                self.tell(rows, &stored, &leases);
                self.grant(&slots, leases, began);
                stored.into_iter().map(Ok).collect()
            }
            Err(error) if error.is_data() && rows.len() > 1 => {
                let (left, right) = rows.split_at(rows.len() / 2);
                let mut answers = Box::pin(self.commit(line, left)).await;
                answers.extend(Box::pin(self.commit(line, right)).await);
                answers
            }
            Err(error) => {
                batch::complain("an enqueue", &error);
                let status = status::store(&error);
                rows.iter().map(|_| Err(status.clone())).collect()
            }
        }
    }

    /// Sends what was leased at once to its workers, and gives the other slots back.
    fn grant(&self, slots: &[Owner], leases: Vec<Claimed>, asked: Instant) {
        if !leases.is_empty() {
            metrics::claimed(leases.len());
        }
        for (job, owner) in self.ready.dispatcher.leased(slots, leases, asked) {
            self.take_back.undelivered(owner, job.job, job.token);
        }
    }

    /// Wakes whoever has to do with jobs that wait.
    fn tell(&self, rows: &[EnqueueRow], stored: &[Enqueued], leases: &[Claimed]) {
        let granted: HashSet<JobId> = leases.iter().map(|lease| lease.job).collect();
        let mut hints: Vec<Hint> = Vec::new();
        let mut later = false;
        for (row, stored) in rows.iter().zip(stored) {
            // The position of a new job is its identity.
            let Enqueued::New(job) = stored else { continue };
            later |= row.job.start != Start::Now;
            // A given time may be in the past, which only the database can tell.
            if matches!(row.job.start, Start::After(_)) || granted.contains(job) {
                continue;
            }
            match hints.last_mut() {
                Some(hint) if hint.lane == row.lane => hint.from = hint.from.min(job.get()),
                _ => hints.push(Hint { lane: row.lane, from: job.get() }),
            }
        }
        self.ready.tell(hints);
        if later {
            self.promoter.look();
        }
    }
}

async fn store_rows(
    line: &mut Line,
    rows: &[EnqueueRow],
    slots: &[Owner],
) -> Result<(Vec<Enqueued>, Vec<Claimed>), StoreError> {
    let mut conn = line.take().await?;
    let mut tries = 0;
    loop {
        tries += 1;
        match enqueue_for(&mut conn, rows, slots).await {
            Ok(stored) => {
                line.keep(conn);
                return Ok(stored);
            }
            Err(error) if error.is_aborted() && tries < TRIES => {}
            // Two connections may in theory draw one identity in one millisecond: no fault of the job's.
            Err(error) if error.is_data() && rows.len() == 1 && tries < TRIES => {}
            Err(error) => return Err(error),
        }
    }
}
