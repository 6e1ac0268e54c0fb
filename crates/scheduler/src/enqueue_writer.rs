//! The writer that stores jobs.

use std::sync::Arc;
use std::time::Duration;

use queue_core::{MAX_BATCH, NewJob, Start};
use queue_store::{EnqueueRow, Enqueued, Lane, Registry, Store, StoreError, enqueue};
use tokio::sync::{Mutex, Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use tonic::Status;

use crate::ready::Ready;
use crate::{batch, promoter, status};

/// Requests that wait for the writer.
const QUEUED_REQUESTS: usize = 4_096;
/// Bytes of payloads that wait for the writer, in KiB: 256 MiB.
const QUEUED_KIB: usize = 256 << 10;
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
    ) -> (Self, impl Future<Output = anyhow::Result<()>>) {
        let (requests, queue) = mpsc::channel(QUEUED_REQUESTS);
        let task = Task { store: store.clone(), ready, promoter };
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
        let mut answers: Vec<Option<Answer>> = Vec::new();
        let mut rows = Vec::with_capacity(jobs.len());
        let mut away = None;
        for job in jobs {
            match self.lane_or(&job, &mut away).await {
                Ok(lane) => {
                    rows.push(EnqueueRow { job, lane, parent: None });
                    answers.push(None);
                }
                Err(status) => answers.push(Some(Err(status))),
            }
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

    /// The lane of one job of a request. A database that is away is asked once, and not once for each new lane.
    async fn lane_or(&self, job: &NewJob, away: &mut Option<Status>) -> Result<Lane, Status> {
        if let Some(lane) = self.registry.lane(job) {
            return Ok(lane);
        }
        if let Some(status) = away {
            return Err(status.clone());
        }
        match timeout(LANE_TIMEOUT, self.lane(job)).await {
            Ok(Ok(lane)) => Ok(lane),
            Ok(Err(error)) if !error.is_unavailable() => Err(status::store(&error)),
            failed => {
                if let Ok(Err(error)) = &failed {
                    batch::complain("registering a lane", error);
                }
                let status = Status::unavailable("the database is not available; nothing was stored");
                Err(away.insert(status).clone())
            }
        }
    }

    /// The lane of a job, registered if it is new.
    pub async fn lane(&self, job: &NewJob) -> Result<Lane, StoreError> {
        if let Some(lane) = self.registry.lane(job) {
            return Ok(lane);
        }
        // One at a time: of the many first jobs of a new queue one registers the lane, and the others find it. Each on a
        // connection of its own, most would give up waiting for one.
        let _turn = self.registering.lock().await;
        if let Some(lane) = self.registry.lane(job) {
            return Ok(lane);
        }
        let registered = async { self.registry.register(&mut *self.store.read().await?, job).await };
        self.store.within(registered).await
    }
}

struct Task {
    store: Store,
    ready: Ready,
    promoter: promoter::Handle,
}

impl Task {
    async fn run(self, mut queue: mpsc::Receiver<Request>) -> anyhow::Result<()> {
        while let Some(requests) = batch::next(&mut queue, MAX_BATCH, |request| request.rows.len()).await {
            let mut rows = Vec::new();
            let mut callers = Vec::new();
            for request in requests {
                callers.push((request.rows.len(), request.answer));
                rows.extend(request.rows);
            }
            let mut answers = Vec::with_capacity(rows.len());
            for rows in rows.chunks(MAX_BATCH) {
                answers.extend(self.commit(rows).await);
            }
            let mut answers = answers.into_iter();
            for (count, caller) in callers {
                // A caller that has gone away needs no answer; its jobs are stored all the same.
                let _ = caller.send(answers.by_ref().take(count).collect());
            }
        }
        Ok(())
    }

    /// Stores a batch, splitting it around rows that the database refuses: one bad row never refuses its neighbours.
    async fn commit(&self, rows: &[EnqueueRow]) -> Vec<Answer> {
        match self.store.within(self.store_rows(rows)).await {
            Ok(stored) => {
                self.tell(rows, &stored);
                stored.into_iter().map(Ok).collect()
            }
            Err(error) if error.is_data() && rows.len() > 1 => {
                let (left, right) = rows.split_at(rows.len() / 2);
                let mut answers = Box::pin(self.commit(left)).await;
                answers.extend(Box::pin(self.commit(right)).await);
                answers
            }
            Err(error) => {
                batch::complain("an enqueue", &error);
                let status = status::store(&error);
                rows.iter().map(|_| Err(status.clone())).collect()
            }
        }
    }

    async fn store_rows(&self, rows: &[EnqueueRow]) -> Result<Vec<Enqueued>, StoreError> {
        let mut conn = self.store.enqueue().await?;
        let mut tries = 0;
        loop {
            tries += 1;
            match enqueue(&mut conn, rows).await {
                Err(error) if error.is_aborted() && tries < TRIES => {}
                // Two connections may in theory draw one identity in one millisecond: no fault of the job's.
                Err(error) if error.is_data() && rows.len() == 1 && tries < TRIES => {}
                result => return result,
            }
        }
    }

    fn tell(&self, rows: &[EnqueueRow], stored: &[Enqueued]) {
        let is_new = |stored: &Enqueued| matches!(stored, Enqueued::New(_));
        let new = rows.iter().zip(stored).filter(|(_, stored)| is_new(stored)).map(|(row, _)| row);
        let mut lanes = Vec::new();
        let mut later = false;
        for row in new {
            later |= row.job.start != Start::Now;
            // A given time may be in the past, which only the database can tell.
            if !matches!(row.job.start, Start::After(_)) && lanes.last() != Some(&row.lane) {
                lanes.push(row.lane);
            }
        }
        self.ready.tell(lanes);
        if later {
            self.promoter.look();
        }
    }
}
