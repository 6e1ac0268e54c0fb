//! The writer that takes leases back on the scheduler's own account.

use std::sync::Arc;

use queue_core::{AttemptEnd, JobId, MAX_BATCH, Token};
use queue_store::{Claimed, Hint, Lane, Owner, Registry, Store, StoreError, Transaction, Unheld, take_back};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::lines::Lines;
use crate::ready::Ready;
use crate::{batch, metrics, obituary};

/// Requests that wait for the writer. What finds no room is found again by the next heartbeat.
const QUEUED: usize = 20_000;
/// Tries of a batch. What stays is found again by the next heartbeat.
const TRIES: usize = 5;
static TAKEN: Lines = Lines::new();

struct Request {
    lease: Unheld,
    end: AttemptEnd,
}

/// The way to the writer.
#[derive(Clone)]
pub struct Handle(mpsc::Sender<Request>);

impl Handle {
    /// Prepares a writer; the returned task must be run.
    pub fn new(
        store: Store,
        registry: Arc<Registry>,
        ready: Ready,
    ) -> (Self, impl Future<Output = anyhow::Result<()>>) {
        let (sender, queue) = mpsc::channel(QUEUED);
        (Self(sender), run(Task { store, registry, ready }, queue))
    }

    /// Grants that were never sent: go back and cost nothing.
    pub fn unsent(&self, owner: Owner, jobs: Vec<Claimed>) {
        for job in jobs {
            self.undelivered(owner, job.job, job.token);
        }
    }

    /// A lease that its worker does not list: goes back and costs nothing.
    pub fn undelivered(&self, owner: Owner, job: JobId, token: Token) {
        self.send(owner, job, token, AttemptEnd::Undelivered);
    }

    /// A lease that has outlived its job's timeout by far: uses an attempt.
    pub fn overdue(&self, owner: Owner, job: JobId, token: Token) {
        self.send(owner, job, token, AttemptEnd::TimedOut);
    }

    fn send(&self, owner: Owner, job: JobId, token: Token, end: AttemptEnd) {
        if self.0.try_send(Request { lease: Unheld { job, token, owner }, end }).is_err() {
            tracing::debug!(job.id = %job, lease.token = %token, "no room to take a lease back now");
        }
    }
}

struct Task {
    store: Store,
    registry: Arc<Registry>,
    ready: Ready,
}

async fn run(task: Task, mut queue: mpsc::Receiver<Request>) -> anyhow::Result<()> {
    while let Some(requests) = batch::next(&mut queue, MAX_BATCH, |_| 1).await {
        for (end, reason) in [
            (AttemptEnd::Undelivered, "the grant did not arrive"),
            (AttemptEnd::TimedOut, "the worker did not end the job long after its timeout"),
        ] {
            let mut leases: Vec<Unheld> =
                requests.iter().filter(|request| request.end == end).map(|request| request.lease).collect();
            leases.sort_unstable();
            leases.dedup();
            if !leases.is_empty() {
                task.persist(&leases, end, reason).await;
            }
        }
    }
    Ok(())
}

impl Task {
    async fn persist(&self, leases: &[Unheld], end: AttemptEnd, reason: &str) {
        let mut patience = batch::Patience::default();
        for _ in 0..TRIES {
            match self.store.within(self.attempt(leases, end, reason)).await {
                Ok(()) => return,
                Err(error) => batch::complain("a take-back", &error),
            }
            patience.wait().await;
        }
    }

    async fn attempt(&self, leases: &[Unheld], end: AttemptEnd, reason: &str) -> Result<(), StoreError> {
        let mut conn = self.store.vital().await?;
        let mut tx = Transaction::begin(&mut conn).await?;
        let taken = take_back(tx.conn(), leases, end, reason, &|lane| self.ready.low(lane)).await?;
        tx.commit().await?;
        let line = |&(job, token, _): &(JobId, Token, Lane)| {
            tracing::info!(job.id = %job, lease.token = %token, end = end.as_str(), "lease taken back");
        };
        let count = |leases| tracing::info!(leases, "more leases taken back");
        TAKEN.tell(Instant::now(), taken.leases.iter(), line, count);
        metrics::ended(end, taken.leases.len());
        obituary::dead(&self.registry, &taken.dead);
        self.ready.tell(taken.leases.into_iter().map(|(_, _, lane)| Hint::anywhere(lane)));
        Ok(())
    }
}
