//! Load: jobs over gRPC, as a user's producer would send them.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{Context as _, bail};
use client::Client;
use futures::future::try_join_all;
use queue_core::NewJob;
use tokio::time::{Instant, timeout};

use crate::{fleet::STALL_BOUND, stage::Stage};

/// Jobs of one call, the most that there may be.
pub(crate) const BATCH: usize = 1_000;

/// Calls at once.
pub(crate) const CALLERS: usize = 4;

/// Enqueues so many jobs; `make` gets the number of each.
pub(crate) async fn fill(stage: &Stage<'_>, jobs: u64, make: impl Fn(u64) -> NewJob) -> anyhow::Result<()> {
    let make = &make;
    let callers = try_join_all((0..CALLERS).map(|_| stage.client())).await?;
    let step = BATCH as u64;
    let send = |(n, client): (usize, Client)| async move {
        let mut first = n as u64 * step;
        while first < jobs {
            let batch = (first..jobs.min(first + step)).map(make).collect();
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
    let (make, sent) = (&make, &AtomicU64::new(0));
    let end = Instant::now() + window.time;
    let callers = try_join_all((0..CALLERS).map(|_| stage.client())).await?;
    let send = |client: Client| {
        let mut tally = stage.fleet.tally();
        async move {
            while Instant::now() < end {
                // Taken before it is sent, so that all callers together never exceed the bound.
                let portion = PORTION as u64;
                let taken = sent.fetch_add(portion, Ordering::Relaxed) + portion;
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
    Ok(sent.load(Ordering::Relaxed))
}
