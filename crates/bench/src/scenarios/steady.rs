//! `steady`: enqueue, run and settle at once.

use std::time::Duration;

use crate::{
    counters::Counters,
    fleet, floor,
    jobs::Jobs,
    load::{self, Window},
    meter::Meter,
    rig::Rig,
    scenario::{Better, Group, Sample, Scenario},
    stage::Stage,
};

/// The scenario.
pub(crate) const SCENARIO: Scenario = Scenario {
    name: "steady",
    about: "enqueue, run and settle at once, with at most 5,000 jobs outstanding",
    group: Group::Main,
    unit: "jobs/s",
    better: Better::Higher,
    floor: "enqueue, claim and settle in turn as SQL from one client, 500 a statement",
    run: |rig| Box::pin(run(rig)),
};

/// Jobs that may be enqueued and not yet handled.
const OUTSTANDING: u64 = 5_000;

/// Jobs of the floor.
const FLOOR_JOBS: (u64, u64) = (200_000, 30_000);

async fn run(rig: &Rig) -> anyhow::Result<Sample> {
    let floor = floor::cycle(rig, rig.scaled(FLOOR_JOBS.0, FLOOR_JOBS.1)).await?;
    let (value, counters) = throughput(rig, Duration::from_secs(rig.scaled(60, 4))).await?;
    rig.note_steady_rate(value).await;
    Ok(Sample { value, floor: Some(floor), counters })
}

/// Jobs per second over so long, and what was counted.
pub(crate) async fn throughput(rig: &Rig, time: Duration) -> anyhow::Result<(f64, Counters)> {
    let mut stage = Stage::set(rig).await?;
    let noop = Jobs::noop()?;
    stage.start_workers(fleet::TWO)?;
    let meter = Meter::start(&stage).await?;
    let window = Window { outstanding: OUTSTANDING, time };
    let enqueued = load::circulate(&stage, window, || noop.plain()).await;
    let jobs = stage.explain(enqueued)?;
    stage.wait_succeeded(jobs).await?;
    let mut counters = meter.span(&stage).await?.per_job(jobs);
    let value = stage.rate(jobs).await?;
    stage.strike(&mut counters).await?;
    Ok((value, counters))
}
