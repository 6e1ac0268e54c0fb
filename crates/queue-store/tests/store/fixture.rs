//! A scheduler and its workers, as far as the store sees them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use queue_core::{AttemptEnd, JobId, KindName, NewJob, Next, QueueName, SessionId, WorkerName};
use queue_store::{
    ClaimRequest, Claimed, Ending, EnqueueRow, Enqueued, Hello, Holder, JobRecord, Lane, Line, Owner, Registry,
    SchedulerId, Session, SettledEffect, SlotRequest, Store, Succeeding, Unheld, Warden,
};
use sqlx::Connection;
use testbed::TestDatabase;
use tokio::sync::Mutex;

/// Lease time of sessions.
pub const TTL: Duration = Duration::from_secs(15);
/// Silence of all schedulers after which sessions get grace.
pub const GAP: Duration = Duration::from_secs(5);
/// No low mark: lanes are read from their start.
pub const LOWS: queue_store::Lows<'static> = &|_| 0;
/// More bytes than any claim of a test holds.
pub const MANY_BYTES: i64 = 1 << 30;

/// One scheduler on the test's database.
pub struct Desk<'a> {
    pub db: &'a TestDatabase,
    pub store: Store,
    pub registry: Registry,
    pub scheduler: SchedulerId,
    line: Mutex<Line>,
}

/// A job of queue `mail` and kind `send`.
pub fn job(payload: &str) -> NewJob {
    job_of("mail", "send", payload)
}

/// A job that no other field is set of.
pub fn job_of(queue: &str, kind: &str, payload: &str) -> NewJob {
    NewJob::new(QueueName::new(queue).expect("a name"), KindName::new(kind).expect("a name"), payload.to_owned())
}

/// A job with an idempotency key.
pub fn keyed(key: &str, payload: &str) -> NewJob {
    job(payload).with_key(key).expect("a key")
}

/// What a worker says first, as a new incarnation each time.
pub fn hello() -> Hello {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut id = [7; 16];
    id[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    Hello {
        id: SessionId(id),
        name: WorkerName::new("worker-1").expect("a name"),
        build: "test".to_owned(),
        queues: vec![QueueName::new("mail").expect("a name")],
        kinds: vec![KindName::new("send").expect("a name")],
        capacity: 10,
    }
}

/// The right that a grant gives to its worker.
pub fn holder(claimed: &Claimed) -> Holder {
    Holder { job: claimed.job, token: claimed.token, session_no: claimed.session_no }
}

/// The lease as its scheduler takes it back.
pub fn unheld(claimed: &Claimed, owner: Owner) -> Unheld {
    Unheld { job: claimed.job, token: claimed.token, owner }
}

/// A retryable failure.
pub fn failed(claimed: &Claimed) -> Ending {
    ending(claimed, AttemptEnd::Failed)
}

/// The end of an attempt, retryable where that matters.
pub fn ending(claimed: &Claimed, end: AttemptEnd) -> Ending {
    Ending {
        holder: holder(claimed),
        end,
        retryable: true,
        wait: None,
        code: Some("broken".to_owned()),
        text: Some("it broke".to_owned()),
        chance: 0.0,
    }
}

/// The job that an enqueue stored.
pub fn new_job(enqueued: &Enqueued) -> JobId {
    match enqueued {
        Enqueued::New(job) => *job,
        other => panic!("not stored: {other:?}"),
    }
}

impl<'a> Desk<'a> {
    /// Registers a scheduler whose start is long ago.
    pub async fn open(db: &'a TestDatabase) -> Self {
        let desk = Self::on(db, db.another_store()).await;
        db.end_grace().await;
        desk
    }

    /// Registers a scheduler that has just started, on a store of its own.
    pub async fn on(db: &'a TestDatabase, store: Store) -> Self {
        let mut conn = store.vital().await.expect("connects");
        let scheduler = queue_store::register_scheduler(&mut conn, "scheduler-1", GAP).await.expect("registers");
        drop(conn);
        let line = Mutex::new(store.enqueue_line());
        Self { db, store, registry: Registry::default(), scheduler, line }
    }

    /// Closes all connections.
    pub async fn close(self) {
        drop(self.line);
        self.store.close().await;
    }

    /// The lane of a job, registered if need be.
    pub async fn lane(&self, job: &NewJob) -> Lane {
        if let Some(lane) = self.registry.lane(job) {
            return lane;
        }
        let mut conn = self.store.enqueue().await.expect("connects");
        self.registry.register(&mut conn, job).await.expect("registers")
    }

    /// Jobs with their lanes.
    pub async fn rows(&self, jobs: &[NewJob]) -> Vec<EnqueueRow> {
        let mut rows = Vec::new();
        for job in jobs {
            rows.push(EnqueueRow { job: job.clone(), lane: self.lane(job).await, parent: None });
        }
        rows
    }

    /// Enqueues a batch. All on one connection: two may draw identities of one millisecond in any order.
    pub async fn enqueue(&self, jobs: &[NewJob]) -> Vec<Enqueued> {
        let rows = self.rows(jobs).await;
        let mut line = self.line.lock().await;
        let mut conn = line.take().await.expect("connects");
        let enqueued = queue_store::enqueue(&mut conn, &rows).await.expect("enqueues");
        line.keep(conn);
        enqueued
    }

    /// Enqueues one job, which must be new.
    pub async fn add(&self, job: NewJob) -> JobId {
        new_job(&self.enqueue(&[job]).await[0])
    }

    /// Enqueues plain jobs.
    pub async fn add_many(&self, count: usize) -> Vec<JobId> {
        let jobs: Vec<NewJob> = (0..count).map(|n| job(&format!("{n}"))).collect();
        let mut ids = Vec::new();
        for batch in jobs.chunks(queue_core::MAX_BATCH) {
            ids.extend(self.enqueue(batch).await.iter().map(new_job));
        }
        ids
    }

    /// Opens a session of a new worker.
    pub async fn session(&self) -> Owner {
        self.greet(&hello()).await
    }

    /// Says hello, which must be welcome.
    pub async fn greet(&self, hello: &Hello) -> Owner {
        match self.greeted(hello).await {
            Session::Open(owner) => owner,
            Session::Expired => panic!("the session is dead"),
        }
    }

    /// Says hello.
    pub async fn greeted(&self, hello: &Hello) -> Session {
        let mut conn = self.store.vital().await.expect("connects");
        queue_store::hello(&mut conn, self.scheduler, hello, TTL).await.expect("answers")
    }

    /// Claims from all lanes known here, from their start.
    pub async fn claim(&self, slots: &[(Owner, u32)]) -> Vec<Claimed> {
        let request = self.request(slots);
        let mut conn = self.store.hot().await.expect("connects");
        queue_store::claim(&mut conn, &request).await.expect("claims").jobs
    }

    /// A claim from all lanes known here.
    pub fn request(&self, slots: &[(Owner, u32)]) -> ClaimRequest {
        ClaimRequest {
            lanes: self.registry.lanes().into_iter().map(|lane| (lane, 0)).collect(),
            slots: slots.iter().map(|&(owner, slots)| SlotRequest { owner, slots }).collect(),
            max_bytes: MANY_BYTES,
            alone: false,
        }
    }

    /// Claims one job, which must be there.
    pub async fn claim_one(&self, owner: Owner) -> Claimed {
        self.claim(&[(owner, 1)]).await.pop().expect("a job is ready")
    }

    /// Settles a success without result.
    pub async fn succeed(&self, holder: Holder) -> Option<SettledEffect> {
        self.succeed_with(Succeeding { holder, result: None, effect: None }).await
    }

    /// Settles a success.
    pub async fn succeed_with(&self, row: Succeeding<'_>) -> Option<SettledEffect> {
        let mut conn = self.store.hot().await.expect("connects");
        queue_store::settle_succeeded(&mut conn, &[row]).await.expect("settles")[0]
    }

    /// Settles one other ending; tells where the job went.
    pub async fn end(&self, row: Ending) -> Option<Next> {
        self.end_all(&[row]).await[0]
    }

    /// Settles other endings; tells where the jobs went.
    pub async fn end_all(&self, rows: &[Ending]) -> Vec<Option<Next>> {
        let mut conn = self.store.hot().await.expect("connects");
        let mut tx = conn.begin().await.expect("begins");
        let ended = queue_store::settle_endings(&mut tx, rows, LOWS).await.expect("settles");
        tx.commit().await.expect("commits");
        ended.into_iter().map(|ended| ended.map(|(next, _)| next)).collect()
    }

    /// Takes leases back; tells how many were.
    pub async fn take_back(&self, rows: &[Unheld], end: AttemptEnd) -> usize {
        let mut conn = self.store.hot().await.expect("connects");
        let mut tx = conn.begin().await.expect("begins");
        let taken = queue_store::take_back(&mut tx, rows, end, "not there", LOWS).await.expect("takes back");
        tx.commit().await.expect("commits");
        taken.leases.len()
    }

    /// Becomes the one who does maintenance.
    pub async fn warden(&self) -> Warden {
        self.acquire("reaper-1", None).await.expect("nobody else holds it")
    }

    /// Tries to become the one who does maintenance.
    pub async fn acquire(&self, name: &str, current: Option<Warden>) -> Option<Warden> {
        let mut conn = self.store.vital().await.expect("connects");
        queue_store::acquire_maintenance(&mut conn, name, current, TTL).await.expect("answers").0
    }

    /// Marks expired sessions dead. `None`: not the warden any more.
    pub async fn expire(&self, warden: Warden) -> Option<queue_store::Expired> {
        let mut conn = self.store.vital().await.expect("connects");
        queue_store::expire_sessions(&mut conn, warden, 100, TTL, GAP).await.expect("answers")
    }

    /// Takes back a page of what dead sessions hold. `None`: not the warden any more.
    pub async fn reap(&self, warden: Warden, limit: i64) -> Option<queue_store::Reaped> {
        let mut conn = self.store.hot().await.expect("connects");
        let mut tx = conn.begin().await.expect("begins");
        let reaped = queue_store::reap_page(&mut tx, warden, limit, LOWS).await.expect("answers");
        tx.commit().await.expect("commits");
        reaped
    }

    /// Lets the worker of a session die, and the reaper notice.
    pub async fn lose(&self, owner: Owner, warden: Warden) -> queue_store::Reaped {
        self.db.expire_session(owner.session_no).await;
        assert_eq!(self.expire(warden).await.expect("the warden").sessions.len(), 1);
        self.reap(warden, 1_000).await.expect("the warden")
    }

    /// Makes what is scheduled ready, whenever it is due.
    pub async fn promote_all(&self) -> queue_store::Promoted {
        self.db.make_due().await;
        self.promote(1_000).await
    }

    /// Makes ready what is due.
    pub async fn promote(&self, limit: i64) -> queue_store::Promoted {
        let mut conn = self.store.hot().await.expect("connects");
        queue_store::promote(&mut conn, limit, None).await.expect("promotes")
    }

    /// Everything known of a job.
    pub async fn look(&self, job: JobId) -> JobRecord {
        let mut conn = self.store.read().await.expect("connects");
        queue_store::job(&mut conn, job).await.expect("looks").expect("the job is known")
    }

    /// What became of leases.
    pub async fn look_up(&self, holders: &[Holder]) -> Vec<queue_store::Past> {
        let mut conn = self.store.read().await.expect("connects");
        queue_store::look_up(&mut conn, holders).await.expect("looks up")
    }
}
