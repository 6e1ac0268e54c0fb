//! The floor of a scenario: the same transitions as plain batched SQL from one client, without gRPC, one statement after the other.
//!
//! The statements are the product's own, those of `queue-store`: what is left between a figure and its floor is the cost of everything
//! around them.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use queue_core::{KindName, QueueName, SessionId, WorkerName};
use queue_store::{
    Claim, ClaimRequest, Conn, EnqueueRow, Hello, Holder, Owner, Registry, Renewal, SchedulerId, Session, SlotRequest,
    Store, Succeeding, claim, hello, register_scheduler, renew, settle_succeeded,
};
use tokio::time::Instant;

use crate::{
    database::Database,
    jobs::{Jobs, NOOP, QUEUE},
    latency::Latency,
    pace::Pace,
    rig::Rig,
};

/// Jobs of one statement.
pub(crate) const BATCH: usize = 500;

/// The session lives longer than any floor takes.
const TTL: Duration = Duration::from_hours(1);

/// More than the payloads of a batch.
const MAX_BYTES: i64 = 64 << 20;

/// Bits of a position below its millisecond.
const POSITION_BITS: u32 = 22;

/// One client of the database.
pub(crate) struct Floor {
    row: EnqueueRow,
    owner: Owner,
    low: i64,
    enqueue: Conn,
    hot: Conn,
    store: Store,
    database: Database,
}

impl Floor {
    /// Connects to a fresh database.
    pub(crate) async fn open(rig: &Rig) -> anyhow::Result<Self> {
        let database = Database::fresh(rig).await?;
        let store = database.store()?;
        let (mut enqueue, mut hot) = (store.enqueue().await?, store.hot().await?);
        let job = Jobs::noop()?.plain();
        let lane = Registry::default().register(&mut enqueue, &job).await.context("register a lane")?;
        let scheduler = register_scheduler(&mut hot, "floor", TTL).await.context("register a scheduler")?;
        let owner = open_session(&mut hot, scheduler).await?;
        Ok(Self { row: EnqueueRow { job, lane, parent: None }, owner, low: 0, enqueue, hot, store, database })
    }

    /// Seconds to enqueue so many jobs, in batches of `batch`.
    pub(crate) async fn enqueue(&mut self, jobs: usize, batch: usize) -> anyhow::Result<f64> {
        let began = Instant::now();
        let mut left = jobs;
        while left > 0 {
            let rows = vec![self.row.clone(); left.min(batch)];
            let answers = queue_store::enqueue(&mut self.enqueue, &rows).await.context("enqueue a batch")?;
            ensure!(answers.len() == rows.len(), "a batch has another number of answers than jobs");
            left -= rows.len();
        }
        Ok(began.elapsed().as_secs_f64())
    }

    /// Seconds to claim and settle so many jobs that are there.
    pub(crate) async fn drain(&mut self, jobs: usize) -> anyhow::Result<f64> {
        let began = Instant::now();
        let mut left = jobs;
        while left > 0 {
            let claim = self.claim(BATCH.min(left)).await?;
            ensure!(!claim.jobs.is_empty(), "{left} jobs are missing");
            left -= claim.jobs.len();
            self.settle(&claim).await?;
        }
        Ok(began.elapsed().as_secs_f64())
    }

    /// Seconds to enqueue, claim and settle so many jobs, batch after batch.
    pub(crate) async fn cycle(&mut self, jobs: usize) -> anyhow::Result<f64> {
        let began = Instant::now();
        let mut left = jobs;
        while left > 0 {
            let batch = BATCH.min(left);
            self.enqueue(batch, batch).await?;
            self.drain(batch).await?;
            left -= batch;
        }
        Ok(began.elapsed().as_secs_f64())
    }

    /// Times from before the enqueue of one job to after its claim.
    pub(crate) async fn latency(&mut self, samples: usize) -> anyhow::Result<Latency> {
        let mut latency = Latency::new()?;
        for _ in 0..samples {
            let began = Instant::now();
            self.enqueue(1, 1).await?;
            let claim = self.claim(1).await?;
            latency.record_since(began);
            self.settle(&claim).await?;
        }
        Ok(latency)
    }

    /// Times from when a job was due to after its claim, of jobs that are due at this rate; in batches of those that came to be due
    /// meanwhile.
    pub(crate) async fn paced(&mut self, rate: f64, time: Duration) -> anyhow::Result<Latency> {
        let (mut latency, mut pace) = (Latency::new()?, Pace::new(rate, time));
        while let Some(due) = pace.next(BATCH).await {
            self.enqueue(due.jobs, due.jobs).await?;
            let claim = self.claim(due.jobs).await?;
            for _ in 0..due.jobs {
                latency.record_since(due.since);
            }
            self.settle(&claim).await?;
        }
        Ok(latency)
    }

    /// Bytes of WAL of one renewal of one of so many sessions, when all are renewed in one statement.
    pub(crate) async fn renewal_wal(&mut self, sessions: u32) -> anyhow::Result<f64> {
        const ROUNDS: u32 = 10;
        let mut owners = vec![self.owner];
        for _ in 1..sessions {
            owners.push(open_session(&mut self.hot, self.owner.scheduler).await?);
        }
        owners.sort();
        let wal = "select pg_current_wal_lsn() - '0/0'";
        let [before] = self.database.psql.numbers::<1>(wal).await?;
        for _ in 0..ROUNDS {
            let renewed = renew(&mut self.hot, &owners, TTL).await.context("renew sessions")?;
            ensure!(renewed.iter().all(|renewal| *renewal == Renewal::Renewed), "a session was lost");
        }
        let [after] = self.database.psql.numbers::<1>(wal).await?;
        Ok((after - before) / f64::from(ROUNDS * sessions))
    }

    async fn claim(&mut self, slots: usize) -> anyhow::Result<Claim> {
        let slots = SlotRequest { owner: self.owner, slots: u32::try_from(slots)? };
        let request = ClaimRequest {
            lanes: vec![(self.row.lane, self.low)],
            slots: vec![slots],
            max_bytes: MAX_BYTES,
            alone: true,
        };
        let claim = claim(&mut self.hot, &request).await.context("claim a batch")?;
        // Nobody else enqueues, so nothing comes in below this millisecond any more.
        if let Some(last) = claim.jobs.iter().map(|job| job.position).max() {
            self.low = last >> POSITION_BITS << POSITION_BITS;
        }
        Ok(claim)
    }

    async fn settle(&mut self, claim: &Claim) -> anyhow::Result<()> {
        let holder = |job: &queue_store::Claimed| Holder { job: job.job, token: job.token, session_no: job.session_no };
        let mut holders: Vec<Holder> = claim.jobs.iter().map(holder).collect();
        holders.sort();
        let rows: Vec<_> = holders.iter().map(|&holder| Succeeding { holder, result: None, effect: None }).collect();
        let answers = settle_succeeded(&mut self.hot, &rows).await.context("settle a batch")?;
        ensure!(answers.iter().all(Option::is_some), "a lease was lost");
        Ok(())
    }

    /// Disconnects and removes the database.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        drop((self.enqueue, self.hot));
        self.store.close().await;
        self.database.remove().await
    }
}

/// Opens one more session.
async fn open_session(conn: &mut Conn, scheduler: SchedulerId) -> anyhow::Result<Owner> {
    let hello_of = Hello {
        id: SessionId(rand::random()),
        name: WorkerName::new("floor")?,
        build: String::new(),
        queues: vec![QueueName::new(QUEUE)?],
        kinds: vec![KindName::new(NOOP)?],
        capacity: u32::try_from(BATCH)?,
    };
    match hello(conn, scheduler, &hello_of, TTL).await.context("open a session")? {
        Session::Open(owner) => Ok(owner),
        Session::Expired => anyhow::bail!("a new session has expired"),
    }
}

/// Jobs per second of enqueues in batches of `batch`.
pub(crate) async fn enqueue(rig: &Rig, jobs: u64, batch: usize) -> anyhow::Result<f64> {
    let mut floor = Floor::open(rig).await?;
    let seconds = floor.enqueue(usize::try_from(jobs)?, batch).await?;
    floor.close().await?;
    Ok(rate(jobs, seconds))
}

/// Jobs per second of claim and settle, of so many that are there.
pub(crate) async fn drain(rig: &Rig, jobs: u64) -> anyhow::Result<f64> {
    let (count, mut floor) = (usize::try_from(jobs)?, Floor::open(rig).await?);
    floor.enqueue(count, BATCH).await?;
    let seconds = floor.drain(count).await?;
    floor.close().await?;
    Ok(rate(jobs, seconds))
}

/// Jobs per second of enqueue, claim and settle, one batch after the other.
pub(crate) async fn cycle(rig: &Rig, jobs: u64) -> anyhow::Result<f64> {
    let mut floor = Floor::open(rig).await?;
    let seconds = floor.cycle(usize::try_from(jobs)?).await?;
    floor.close().await?;
    Ok(rate(jobs, seconds))
}

/// Jobs per second.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) fn rate(jobs: u64, seconds: f64) -> f64 {
    jobs as f64 / seconds
}
