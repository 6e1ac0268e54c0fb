//! The flat family: the drain again, in a system that holds much. Its floor is the plain drain of the same run.

use std::time::Duration;

use anyhow::Context as _;

use super::{backlog, drain};
use crate::{
    fleet,
    jobs::Jobs,
    load,
    meter::TOTAL_CPU,
    prefill::Place,
    rig::Rig,
    scenario::{Better, Group, Sample, Scenario},
    stage::Stage,
};

/// What all of the family share.
const BASE: Scenario = Scenario {
    name: "",
    about: "",
    group: Group::Flat,
    unit: "jobs/s",
    better: Better::Higher,
    floor: "the plain drain of the same run",
    run: |rig| Box::pin(drain::plain(rig)),
};

/// The scenario.
pub(crate) const READY: Scenario = Scenario {
    name: "flat-ready",
    about: "the drain of the first of 10 million ready jobs",
    run: |rig| Box::pin(filled(rig, Place::Ready, backlog::size(rig))),
    ..BASE
};

/// The scenario.
pub(crate) const FINISHED: Scenario = Scenario {
    name: "flat-finished",
    about: "the drain with 10 million finished jobs",
    run: |rig| Box::pin(filled(rig, Place::Finished, backlog::size(rig))),
    ..BASE
};

/// The scenario.
pub(crate) const SCHEDULED: Scenario = Scenario {
    name: "flat-scheduled",
    about: "the drain with 1 million jobs for later",
    run: |rig| Box::pin(filled(rig, Place::Scheduled, million(rig))),
    ..BASE
};

/// The scenario.
pub(crate) const DEAD: Scenario = Scenario {
    name: "flat-dead",
    about: "the drain with 1 million dead jobs",
    run: |rig| Box::pin(filled(rig, Place::Dead, million(rig))),
    ..BASE
};

/// The scenario.
pub(crate) const UNKNOWN: Scenario = Scenario {
    name: "flat-unknown",
    about: "the drain behind 1 million jobs of a kind that no worker knows",
    run: |rig| Box::pin(filled(rig, Place::Unknown, million(rig))),
    ..BASE
};

/// The scenario.
pub(crate) const KEYS: Scenario = Scenario {
    name: "flat-keys",
    about: "the drain of jobs that have idempotency keys",
    run: |rig| Box::pin(keys(rig)),
    ..BASE
};

/// The scenario.
pub(crate) const SNAPSHOT: Scenario = Scenario {
    name: "flat-snapshot",
    about: "the drain after ten minutes at 3,000 jobs/s under a snapshot that is still held",
    run: |rig| Box::pin(snapshot(rig)),
    ..BASE
};

/// The scenario.
pub(crate) const TWO_SCHEDULERS: Scenario = Scenario {
    name: "two-schedulers",
    about: "the drain by two schedulers on one database, a worker at each",
    run: |rig| Box::pin(two_schedulers(rig)),
    ..BASE
};

/// What goes through the system while the snapshot is held, in jobs per second.
const SNAPSHOT_RATE: f64 = 3_000.0;

fn million(rig: &Rig) -> u64 {
    rig.scaled(1_000_000, 100_000)
}

/// The sample beside the plain drain.
async fn beside_plain(rig: &Rig, sample: impl Future<Output = anyhow::Result<Sample>>) -> anyhow::Result<Sample> {
    let plain = drain::plain(rig).await.context("the plain drain")?;
    let mut sample = sample.await?;
    for name in [drain::CLAIM_P99, "claim_exec_mean_ms", "claim_exec_max_ms", TOTAL_CPU] {
        if let Some((value, plain)) = sample.counters.get(name).zip(plain.counters.get(name)) {
            sample.counters.set(format!("plain_{name}"), plain);
            sample.counters.set(format!("{name}_ratio"), value / plain);
        }
    }
    Ok(Sample { floor: Some(plain.value), ..sample })
}

async fn filled(rig: &Rig, place: Place, held: u64) -> anyhow::Result<Sample> {
    // First, so that the plain drain comes right before the other one.
    let database = rig.filled(place, held).await?;
    let sample = async {
        let stage = Stage::on(rig, database).await?;
        let jobs = drain::size(rig);
        if place != Place::Ready {
            drain::preload(&stage, jobs).await?;
        }
        drain::measured(stage, jobs).await
    };
    beside_plain(rig, sample).await
}

async fn keys(rig: &Rig) -> anyhow::Result<Sample> {
    let sample = async {
        let stage = Stage::set(rig).await?;
        let (jobs, noop) = (drain::size(rig), Jobs::noop()?);
        load::fill(&stage, jobs, |n| noop.keyed(n)).await?;
        drain::measured(stage, jobs).await
    };
    beside_plain(rig, sample).await
}

async fn snapshot(rig: &Rig) -> anyhow::Result<Sample> {
    let sample = async {
        let mut stage = Stage::set(rig).await?;
        let noop = Jobs::noop()?;
        let snapshot = stage.database.psql.hold_snapshot().await?;
        stage.start_workers(fleet::TWO)?;
        let time = Duration::from_secs(rig.scaled(600, 5));
        let enqueued = load::paced(&stage, SNAPSHOT_RATE, time, || noop.plain()).await;
        let through = stage.explain(enqueued)?;
        stage.wait_succeeded(through).await?;
        stage.mark().await?;
        let jobs = drain::size(rig);
        drain::preload(&stage, jobs).await?;
        let sample = drain::measured(stage, jobs).await?;
        drop(snapshot);
        Ok(sample)
    };
    beside_plain(rig, sample).await
}

async fn two_schedulers(rig: &Rig) -> anyhow::Result<Sample> {
    let sample = async {
        let mut stage = Stage::set(rig).await?;
        stage.start_scheduler().await?;
        drain::preload(&stage, drain::size(rig)).await?;
        drain::measured(stage, drain::size(rig)).await
    };
    beside_plain(rig, sample).await
}
