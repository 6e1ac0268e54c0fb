//! Load: jobs over gRPC, as a user's producer would send them.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{Context as _, bail};
use client::Client;
use futures::future::try_join_all;
use queue_core::{Invalid, NewJob};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{fleet::STALL_BOUND, pace::Pace, stage::Stage};

/// Jobs of one call, the most that there may be.
pub(crate) const BATCH: usize = 1_000;

/// Calls at once.
pub(crate) const CALLERS: usize = 4;

/// Enqueues so many jobs; `make` gets the number of each.
pub(crate) async fn fill(
    stage: &Stage<'_>,
    jobs: u64,
    make: impl Fn(u64) -> Result<NewJob, Invalid>,
) -> anyhow::Result<()> {
    let make = &make;
    let callers = try_join_all((0..CALLERS).map(|_| stage.client())).await?;
    let step = BATCH as u64;
    let send = |(n, client): (usize, Client)| async move {
        let mut first = n as u64 * step;
        while first < jobs {
            let batch = (first..jobs.min(first + step)).map(make).collect::<Result<_, _>>()?;
            call(&client, batch).await?;
            first += CALLERS as u64 * step;
        }
        anyhow::Ok(())
    };
    try_join_all(callers.into_iter().enumerate().map(send)).await.map(drop)
}

/// Enqueues a batch; an error if one of it was refused.
pub(crate) async fn call(client: &Client, batch: Vec<NewJob>) -> anyhow::Result<()> {
    let answers = client.enqueue_batch(batch).await.context("enqueue a batch")?;
    answers.into_iter().collect::<Result<Vec<_>, _>>().context("enqueue a job of a batch").map(drop)
}

/// Load that follows the workers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Jobs that may be enqueued and not yet handled.
    pub(crate) outstanding: u64,
    /// For how long.
    pub(crate) time: Duration,
}

/// Jobs of one call where jobs are enqueued as workers handle them.
const PORTION: usize = 250;

/// Enqueues as fast as the workers handle, and returns how many jobs it were.
pub(crate) async fn circulate(stage: &Stage<'_>, window: Window, make: impl Fn() -> NewJob) -> anyhow::Result<u64> {
    let (make, enqueued) = (&make, &AtomicU64::new(0));
    let end = Instant::now() + window.time;
    let callers = try_join_all((0..CALLERS).map(|_| stage.client())).await?;
    let send = |client: Client| {
        let mut tally = stage.fleet.tally();
        async move {
            while Instant::now() < end {
                // Taken before it is sent, so that all callers together never exceed the bound.
                let portion = PORTION as u64;
                let taken = enqueued.fetch_add(portion, Ordering::Relaxed) + portion;
                while taken > tally.handled() + window.outstanding {
                    let Ok(changed) = timeout(STALL_BOUND, tally.changed()).await else {
                        bail!("workers stand still after {} jobs", tally.handled());
                    };
                    changed?;
                }
                call(&client, (0..PORTION).map(|_| make()).collect()).await?;
            }
            anyhow::Ok(())
        }
    };
    try_join_all(callers.into_iter().map(send)).await?;
    Ok(enqueued.load(Ordering::Relaxed))
}

/// Calls that are under way at once under open load. More are due only where the system does not keep up.
const UNDER_WAY: usize = 64;

/// Enqueues jobs at a fixed rate, whatever becomes of those before them, and returns how many it were.
pub(crate) async fn paced(
    stage: &Stage<'_>,
    rate: f64,
    time: Duration,
    make: impl Fn() -> NewJob,
) -> anyhow::Result<u64> {
    let callers = try_join_all((0..CALLERS).map(|_| stage.client())).await?;
    let (mut pace, mut calls, mut sent) = (Pace::new(rate, time), JoinSet::new(), 0);
    for client in callers.iter().cycle() {
        let Some(due) = pace.next(BATCH).await else { break };
        let (client, batch) = (client.clone(), (0..due.jobs).map(|_| make()).collect());
        sent += due.jobs as u64;
        calls.spawn(async move { call(&client, batch).await });
        // Those that are done are looked at now and then; waited for only where too many are under way.
        while calls.len() >= UNDER_WAY
            && let Some(called) = calls.join_next().await
        {
            called.context("wait for a call")??;
        }
    }
    while let Some(called) = calls.join_next().await {
        called.context("wait for a call")??;
    }
    Ok(sent)
}
