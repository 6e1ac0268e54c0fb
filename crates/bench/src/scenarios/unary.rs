//! `unary`: one job a call, many callers.

use std::time::Duration;

use anyhow::Context as _;
use client::Client;
use futures::future::try_join_all;
use tokio::time::Instant;

use crate::{
    floor,
    jobs::Jobs,
    latency::Latency,
    meter::Meter,
    rig::Rig,
    scenario::{Better, Group, Sample, Scenario},
    stage::Stage,
};

/// The scenario.
pub(crate) const SCENARIO: Scenario = Scenario {
    name: "unary",
    about: "Enqueue of single jobs by 64 concurrent callers on four connections",
    group: Group::Main,
    unit: "jobs/s",
    better: Better::Higher,
    floor: "enqueue as SQL from one client, 64 a statement",
    run: |rig| Box::pin(run(rig)),
};

/// Callers, each of which waits for its answer.
const CALLERS: usize = 64;

/// Connections that they share.
const CONNECTIONS: usize = 4;

/// Jobs of the floor.
const FLOOR_JOBS: (u64, u64) = (50_000, 20_000);

async fn run(rig: &Rig) -> anyhow::Result<Sample> {
    let floor = floor::enqueue(rig, rig.scaled(FLOOR_JOBS.0, FLOOR_JOBS.1), CALLERS).await?;
    let mut stage = Stage::set(rig).await?;
    let clients = try_join_all((0..CONNECTIONS).map(|_| stage.client())).await?;
    let noop = Jobs::noop()?;
    // The first job of a lane registers it.
    clients[0].enqueue(noop.plain()).await.context("enqueue the first job")?;
    let meter = Meter::start(&stage).await?;
    let began = Instant::now();
    let end = began + Duration::from_secs(rig.scaled(20, 2));
    let callers = (0..CALLERS).map(|n| tokio::spawn(call(clients[n % CONNECTIONS].clone(), noop.clone(), end)));
    let mut latency = Latency::new()?;
    for caller in callers.collect::<Vec<_>>() {
        latency.add(&caller.await.context("wait for a caller")??);
    }
    let (jobs, seconds) = (latency.count(), began.elapsed().as_secs_f64());
    let mut counters = meter.span(&stage).await?.per_job(jobs);
    counters.set("call_p50_ms", latency.quantile_ms(0.5));
    counters.set("call_p99_ms", latency.quantile_ms(0.99));
    stage.check()?;
    stage.expect_ready(jobs + 1).await?;
    stage.strike(&mut counters).await?;
    Ok(Sample { value: floor::rate(jobs, seconds), floor: Some(floor), counters })
}

/// One caller: call after call until the end.
async fn call(client: Client, jobs: Jobs, end: Instant) -> anyhow::Result<Latency> {
    let mut latency = Latency::new()?;
    loop {
        let began = Instant::now();
        if began >= end {
            return Ok(latency);
        }
        client.enqueue(jobs.plain()).await.context("enqueue a job")?;
        latency.record_since(began);
    }
}
