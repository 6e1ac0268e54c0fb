//! `backlog`: memory of the scheduler while very many jobs wait.

use crate::{
    fleet,
    meter::Meter,
    prefill::Place,
    rig::Rig,
    scenario::{Better, Group, Sample, Scenario},
    stage::Stage,
};

/// The scenario.
pub(crate) const SCENARIO: Scenario = Scenario {
    name: "backlog",
    about: "peak memory of the scheduler with 10 million ready jobs, while two workers run",
    group: Group::Main,
    unit: "MiB",
    better: Better::Lower,
    floor: "none",
    run: |rig| Box::pin(run(rig)),
};

/// Jobs that wait.
pub(super) fn size(rig: &Rig) -> u64 {
    rig.scaled(10_000_000, 200_000)
}

async fn run(rig: &Rig) -> anyhow::Result<Sample> {
    let mut stage = Stage::on(rig, rig.filled(Place::Ready, size(rig)).await?).await?;
    let meter = Meter::start(&stage).await?;
    stage.start_workers(fleet::TWO)?;
    stage.fleet.wait_handled(rig.scaled(500_000, 20_000)).await?;
    let span = meter.span(&stage).await?;
    let mut counters = span.per_job(stage.fleet.handled());
    stage.strike(&mut counters).await?;
    Ok(Sample { value: span.scheduler_mib(), floor: None, counters })
}
