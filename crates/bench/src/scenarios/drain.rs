//! `drain`: a preloaded backlog of jobs that do nothing.

use crate::{
    fleet, floor,
    jobs::Jobs,
    load,
    meter::{self, Meter},
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

/// From the wish to claim to the commit, as the scheduler sees it. `exec` is the statement alone, as the server counts it.
pub(super) const CLAIM_P99: &str = "claim_p99_ms";

/// Jobs of the backlog.
pub(super) fn size(rig: &Rig) -> u64 {
    rig.scaled(200_000, 50_000)
}

async fn run(rig: &Rig) -> anyhow::Result<Sample> {
    let floor = floor::drain(rig, size(rig)).await?;
    Ok(Sample { floor: Some(floor), ..plain(rig).await? })
}

/// The drain in a system that holds nothing else.
pub(super) async fn plain(rig: &Rig) -> anyhow::Result<Sample> {
    let stage = Stage::set(rig).await?;
    preload(&stage, size(rig)).await?;
    measured(stage, size(rig)).await
}

/// Enqueues the backlog.
pub(super) async fn preload(stage: &Stage<'_>, jobs: u64) -> anyhow::Result<()> {
    let noop = Jobs::noop()?;
    load::fill(stage, jobs, |_| Ok(noop.plain())).await
}

/// Starts workers on jobs that are there, and measures the first so many.
pub(super) async fn measured(mut stage: Stage<'_>, jobs: u64) -> anyhow::Result<Sample> {
    let before = stage.commits("claim").await?;
    let meter = Meter::start(&stage).await?;
    stage.start_workers(fleet::TWO)?;
    stage.wait_succeeded(jobs).await?;
    // More than these where more are there.
    let done = stage.fleet.handled();
    let mut counters = meter.span(&stage).await?.per_job(done);
    let value = stage.rate(jobs).await?;
    let mut claims = stage.commits("claim").await?;
    claims.subtract(&before);
    if let Some(p99) = claims.quantile_ms(0.99) {
        counters.set(CLAIM_P99, p99);
    }
    for name in ["claim", "settle_succeeded"] {
        if let Some([_, mean_ms, max_ms, _]) = meter::statement(&stage, name).await? {
            counters.set(format!("{name}_exec_mean_ms"), mean_ms);
            counters.set(format!("{name}_exec_max_ms"), max_ms);
        }
    }
    stage.strike(&mut counters).await?;
    Ok(Sample { value, floor: None, counters })
}
