//! `bulk`: large batches over gRPC.

use tokio::time::Instant;

use crate::{
    floor,
    jobs::Jobs,
    load,
    meter::Meter,
    rig::Rig,
    scenario::{Better, Group, Sample, Scenario},
    stage::Stage,
};

/// The scenario.
pub(crate) const SCENARIO: Scenario = Scenario {
    name: "bulk",
    about: "EnqueueBatch of 1,000 jobs, four calls at once",
    group: Group::Main,
    unit: "jobs/s",
    better: Better::Higher,
    floor: "enqueue as SQL from one client, 1,000 a statement",
    run: |rig| Box::pin(run(rig)),
};

async fn run(rig: &Rig) -> anyhow::Result<Sample> {
    let jobs: u64 = rig.scaled(500_000, 200_000);
    let floor = floor::enqueue(rig, jobs, load::BATCH).await?;
    let mut stage = Stage::set(rig).await?;
    let noop = Jobs::noop()?;
    // The first job of a lane registers it, and connections are opened.
    load::fill(&stage, load::BATCH as u64, |_| Ok(noop.plain())).await?;
    let meter = Meter::start(&stage).await?;
    let began = Instant::now();
    load::fill(&stage, jobs, |_| Ok(noop.plain())).await?;
    let seconds = began.elapsed().as_secs_f64();
    let mut counters = meter.span(&stage).await?.per_job(jobs);
    stage.expect_ready(jobs + load::BATCH as u64).await?;
    stage.check()?;
    stage.strike(&mut counters).await?;
    Ok(Sample { value: floor::rate(jobs, seconds), floor: Some(floor), counters })
}
