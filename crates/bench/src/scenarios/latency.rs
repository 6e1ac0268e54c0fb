//! `latency-idle` and `latency-half`: from before the enqueue to the start of the handler.

use std::time::Duration;

use anyhow::Context as _;
use tokio::time::sleep;

use super::steady;
use crate::{
    counters::Counters,
    fleet,
    floor::Floor,
    jobs::Jobs,
    latency::Latency,
    load,
    meter::Meter,
    rig::Rig,
    scenario::{Better, Group, Sample, Scenario},
    stage::Stage,
};

/// The scenario.
pub(crate) const IDLE: Scenario = Scenario {
    name: "latency-idle",
    about: "enqueue to handler start, p50, one job at a time in an idle system",
    group: Group::Main,
    unit: "ms",
    better: Better::Lower,
    floor: "enqueue and claim of one job as SQL from one client, p50",
    run: |rig| Box::pin(idle(rig)),
};

/// The scenario.
pub(crate) const HALF: Scenario = Scenario {
    name: "latency-half",
    about: "enqueue to handler start, p99, open load at half of the steady throughput",
    group: Group::Main,
    unit: "ms",
    better: Better::Lower,
    floor: "enqueue and claim as SQL from one client under the same open load, p99",
    run: |rig| Box::pin(half(rig)),
};

/// Between a handler's start and the next enqueue.
const PAUSE: Duration = Duration::from_millis(15);

async fn idle(rig: &Rig) -> anyhow::Result<Sample> {
    let samples = rig.scaled(1_000, 100);
    let mut floor = Floor::open(rig).await?;
    let bare = floor.latency(samples).await?;
    floor.close().await?;
    let mut stage = ready(rig).await?;
    let (client, noop) = (stage.client().await?, Jobs::noop()?);
    let meter = Meter::start(&stage).await?;
    for n in 1..=samples as u64 {
        client.enqueue(noop.stamped()).await.context("enqueue a job")?;
        stage.fleet.wait_handled(n).await?;
        sleep(PAUSE).await;
    }
    finish(stage, &meter, samples as u64, 0.5, Some(bare.quantile_ms(0.5))).await
}

async fn half(rig: &Rig) -> anyhow::Result<Sample> {
    let calibrate = async { Ok(steady::throughput(rig, Duration::from_secs(5)).await?.0) };
    let rate = rig.steady_rate(calibrate).await? / 2.0;
    let time = Duration::from_secs(rig.scaled(30, 3));
    let mut floor = Floor::open(rig).await?;
    let bare = floor.paced(rate, time).await?;
    floor.close().await?;
    let mut stage = ready(rig).await?;
    let noop = Jobs::noop()?;
    let meter = Meter::start(&stage).await?;
    let enqueued = load::paced(&stage, rate, time, || noop.stamped()).await;
    let jobs = stage.explain(enqueued)?;
    stage.wait_succeeded(jobs).await?;
    let mut sample = finish(stage, &meter, jobs, 0.99, Some(bare.quantile_ms(0.99))).await?;
    sample.counters.set("offered_jobs_per_s", rate);
    Ok(sample)
}

/// A stage whose lane is known and whose workers are connected: they have run a job.
async fn ready(rig: &Rig) -> anyhow::Result<Stage<'_>> {
    let mut stage = Stage::set(rig).await?;
    stage.start_workers(fleet::TWO)?;
    stage.wait_sessions(fleet::TWO.processes).await?;
    stage.client().await?.enqueue(Jobs::noop()?.plain()).await.context("enqueue the first job")?;
    stage.wait_succeeded(1).await?;
    stage.fleet.reset();
    Ok(stage)
}

async fn finish(
    mut stage: Stage<'_>,
    meter: &Meter,
    jobs: u64,
    share: f64,
    floor: Option<f64>,
) -> anyhow::Result<Sample> {
    stage.check()?;
    let mut counters = meter.span(&stage).await?.per_job(jobs);
    let latency = stage.strike(&mut counters).await?;
    anyhow::ensure!(latency.count() == jobs, "{} of {jobs} jobs have told their latency", latency.count());
    quantiles(&latency, &mut counters);
    Ok(Sample { value: latency.quantile_ms(share), floor, counters })
}

fn quantiles(latency: &Latency, counters: &mut Counters) {
    for (name, share) in [("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99), ("max_ms", 1.0)] {
        counters.set(name, latency.quantile_ms(share));
    }
}
