//! `drain`: a preloaded backlog of jobs that do nothing.

use crate::{
    fleet, floor,
    jobs::Jobs,
    load,
    meter::Meter,
    rig::Rig,
    scenario::{Better, Group, Sample, Scenario},
    stage::Stage,
};

/// The scenario.
pub(crate) const SCENARIO: Scenario = Scenario {
    name: "drain",
    about: "preloaded no-op jobs, 128-byte payloads, two workers of 128 slots",
    group: Group::Main,
    unit: "jobs/s",
    better: Better::Higher,
    floor: "claim and settle as SQL from one client, 500 a statement",
    run: |rig| Box::pin(run(rig)),
};

/// Jobs of the backlog.
pub(crate) fn size(rig: &Rig) -> u64 {
    rig.scaled(200_000, 50_000)
}

async fn run(rig: &Rig) -> anyhow::Result<Sample> {
    let jobs = size(rig);
    let floor = floor::drain(rig, jobs).await?;
    let mut stage = Stage::set(rig).await?;
    let noop = Jobs::noop()?;
    load::fill(&stage, jobs, |_| noop.plain()).await?;
    let meter = Meter::start(&stage).await?;
    stage.start_workers(fleet::TWO)?;
    stage.wait_succeeded(jobs).await?;
    let mut counters = meter.stop(&stage, jobs).await?;
    let value = stage.rate(jobs).await?;
    stage.strike(&mut counters).await?;
    Ok(Sample { value, floor: Some(floor), counters })
}
