//! `idle`: what it costs that workers are there and nothing happens.

use std::time::Duration;

use anyhow::Context as _;

use crate::{
    fleet::Crew,
    meter::Meter,
    rig::Rig,
    scenario::{Better, Group, Sample, Scenario},
    stage::Stage,
};

/// The scenario.
pub(crate) const SCENARIO: Scenario = Scenario {
    name: "idle",
    about: "statements while 100 workers are connected and there are no jobs",
    group: Group::Main,
    unit: "statements/s",
    better: Better::Lower,
    floor: "none",
    run: |rig| Box::pin(run(rig)),
};

/// A hundred workers in four processes.
const CREW: Crew = Crew { processes: 4, instances: 25, slots: 8 };

async fn run(rig: &Rig) -> anyhow::Result<Sample> {
    let mut stage = Stage::set(rig).await?;
    stage.start_workers(CREW)?;
    stage.wait_sessions(CREW.processes * CREW.instances).await?;
    // For the workers to have said everything that a start needs.
    stage.pass(Duration::from_secs(rig.scaled(3, 1))).await?;
    let meter = Meter::start(&stage).await?;
    stage.pass(Duration::from_secs(rig.scaled(60, 5))).await?;
    let mut counters = meter.span(&stage).await?.per_second();
    stage.strike(&mut counters).await?;
    let value = counters.get("statements_per_s").context("count statements: the server lacks pg_stat_statements")?;
    Ok(Sample { value, floor: None, counters })
}
