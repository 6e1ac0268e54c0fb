//! `sessions`: many connected workers, and a scheduler that is killed.

use std::time::Duration;

use anyhow::Context as _;
use tokio::time::Instant;

use crate::{
    meter::Meter,
    rig::Rig,
    scenario::{Better, Group, Sample, Scenario},
    sessions::Sessions,
    stage::Stage,
    usage,
};

/// The scenario.
pub(crate) const SCENARIO: Scenario = Scenario {
    name: "sessions",
    about: "memory of the scheduler for each of 5,000 connected workers; then it is killed and started again",
    group: Group::Main,
    unit: "KiB/session",
    better: Better::Lower,
    floor: "none",
    run: |rig| Box::pin(run(rig)),
};

/// For all to be welcomed.
const OPEN_BOUND: Duration = Duration::from_mins(2);

async fn run(rig: &Rig) -> anyhow::Result<Sample> {
    let count: u32 = rig.scaled(5_000, 500);
    let mut stage = Stage::set(rig).await?;
    let empty = resident(&stage)?;
    let began = Instant::now();
    let mut sessions = Sessions::open(&stage.connect_options(), count as usize)?;
    sessions.all_open(&mut stage, OPEN_BOUND).await?;
    let opened = began.elapsed();
    // In a full run more than a heartbeat's interval, so that each has sent some.
    let calm = Duration::from_secs(rig.scaled(10, 1));
    stage.pass(calm).await?;
    let value = (resident(&stage)? - empty) * 1024.0 / f64::from(count);
    let meter = Meter::start(&stage).await?;
    stage.pass(calm).await?;
    let mut counters = meter.span(&stage).await?.per_second();
    let began = Instant::now();
    let address = stage.kill_scheduler().await?;
    // Else those that have not noticed would count as open.
    sessions.none_open().await?;
    stage.start_scheduler_at(address).await?;
    let restarted = began.elapsed();
    sessions.all_open(&mut stage, OPEN_BOUND).await?;
    counters.set("sessions", f64::from(count));
    counters.set("welcome_s", opened.as_secs_f64());
    counters.set("restart_s", restarted.as_secs_f64());
    counters.set("rewelcome_s", began.elapsed().as_secs_f64());
    drop(sessions);
    stage.strike(&mut counters).await?;
    Ok(Sample { value, floor: None, counters })
}

fn resident(stage: &Stage<'_>) -> anyhow::Result<f64> {
    stage.scheduler_pids().next().map(usage::resident_mib).context("the scheduler is gone")
}
