//! `heartbeats`: what it costs that many jobs run and nothing else happens.

use std::time::Duration;

use anyhow::Context as _;

use crate::{
    fleet::Crew,
    floor::Floor,
    jobs::Jobs,
    load,
    meter::{self, Meter},
    rig::Rig,
    scenario::{Better, Group, Sample, Scenario},
    stage::Stage,
};

/// The scenario.
pub(crate) const SCENARIO: Scenario = Scenario {
    name: "heartbeats",
    about: "WAL of the renewals per worker and beat, 100 workers that run 100 jobs each",
    group: Group::Main,
    unit: "B",
    better: Better::Lower,
    floor: "WAL of the renewal of 100 sessions in one SQL statement, for each of them",
    run: |rig| Box::pin(run(rig)),
};

/// A hundred workers of a hundred slots, in four processes.
const CREW: Crew = Crew { processes: 4, instances: 25, slots: 100 };

/// Workers in all.
pub(super) const WORKERS: u32 = CREW.processes * CREW.instances;

/// Between two beats of a worker, by the scheduler's default flags.
const BEAT: Duration = Duration::from_secs(5);

async fn run(rig: &Rig) -> anyhow::Result<Sample> {
    let mut floor = Floor::open(rig).await?;
    let bare = floor.renewal_wal(WORKERS).await?;
    floor.close().await?;
    let jobs = u64::from(WORKERS * CREW.slots);
    let mut stage = Stage::set(rig).await?;
    let hold = Jobs::hold()?;
    load::fill(&stage, jobs, |_| Ok(hold.plain())).await?;
    stage.start_workers(CREW)?;
    stage.wait_leased(jobs).await?;
    // What is left to do after a start is done, by the server too, which would vacuum in time; then whole beats.
    stage.pass(rig.scaled(BEAT, Duration::from_secs(1))).await?;
    stage.database.psql.run("vacuum (analyze)").await?;
    let beats = rig.scaled(12, 1);
    let renewals = meter::statement(&stage, "renew").await?;
    let meter = Meter::start(&stage).await?;
    stage.pass(BEAT * beats).await?;
    let span = meter.span(&stage).await?;
    let mut counters = span.per_second();
    let renewals = renewals.zip(meter::statement(&stage, "renew").await?);
    let (before, after) = renewals.context("count statements: the server lacks pg_stat_statements")?;
    counters.set("renew_statements_per_beat", (after[0] - before[0]) / f64::from(beats));
    counters.set("renew_exec_mean_ms", after[1]);
    stage.wait_leased(jobs).await?;
    stage.strike(&mut counters).await?;
    Ok(Sample { value: (after[3] - before[3]) / f64::from(WORKERS * beats), floor: Some(bare), counters })
}
