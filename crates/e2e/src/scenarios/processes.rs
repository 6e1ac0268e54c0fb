//! Processes that are killed, stopped and replaced.

use std::time::Duration;

use anyhow::ensure;
use queue_core::NewJob;
use rand::RngExt as _;
use tokio::time::sleep;

use super::{JOBS, LOAD, RATE, load, mixed, plain, soon};
use crate::{
    worker::{Manners, Step},
    world::{TTL, World},
};

/// Somewhere within a time.
fn moment(world: &mut World, longest: Duration) -> Duration {
    longest.mul_f64(world.rng.random())
}

/// A job that may be tried once.
fn once(mut job: NewJob) -> NewJob {
    job.retry.max_attempts = Some(1);
    job
}

pub(super) async fn workers_killed(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 4, 8).await?;
    world.producer()?.enqueue(JOBS, mixed, soon).await?;
    for _ in 0..2 {
        for at in [0, 1] {
            sleep(moment(world, Duration::from_millis(800))).await;
            world.fault("SIGKILL of a worker");
            world.workers[at].kill();
        }
        world.healed("SIGKILL of a worker");
        // They are not started again: others start in their place.
        world.workers.drain(..2);
        world.add_worker(8);
        world.add_worker(8);
    }
    Ok(())
}

pub(super) async fn workers_frozen(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    world.producer()?.enqueue(JOBS, mixed, soon).await?;
    for at in [0, 1, 0] {
        sleep(moment(world, Duration::from_millis(500))).await;
        world.fault("SIGSTOP of a worker");
        world.workers[at].freeze();
        sleep(TTL * 2 + moment(world, TTL)).await;
        world.workers[at].thaw();
        world.healed("SIGSTOP of a worker");
    }
    Ok(())
}

pub(super) async fn workers_replaced(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    let producer = world.producer()?;
    let step = |number| Step { manners: if number % 5 == 0 { Manners::Deaf } else { Manners::Polite }, ..plain(300) };
    let load = tokio::spawn(async move { producer.enqueue(JOBS, step, once).await });
    for round in 0..6 {
        sleep(moment(world, Duration::from_secs(1))).await;
        let at = round % world.workers.len();
        world.fault("SIGTERM of a worker");
        world.workers[at].terminate();
        world.add_worker(8);
        let mut old = world.workers.swap_remove(at);
        let status = old.exit(Duration::from_secs(20)).await;
        world.healed("SIGTERM of a worker");
        ensure!(status.success(), "a drained worker ended with {status}:\n{}", old.log().join("\n"));
    }
    load.await?
}

pub(super) async fn drains_killed(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    world.producer()?.enqueue(JOBS, mixed, soon).await?;
    for round in 0..6 {
        sleep(moment(world, Duration::from_millis(600))).await;
        let at = round % world.workers.len();
        world.fault("SIGKILL amid a drain");
        world.workers[at].terminate();
        sleep(moment(world, Duration::from_millis(600))).await;
        world.workers[at].kill();
        world.healed("SIGKILL amid a drain");
        world.workers.swap_remove(at);
        world.add_worker(8);
    }
    Ok(())
}

pub(super) async fn poison(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 4).await?;
    let step = |number| match number {
        // Three that take a worker along at each attempt that they get.
        50..53 => Step { manners: Manners::Deadly, ..plain(50) },
        _ => plain(50),
    };
    world.producer()?.enqueue(200, step, soon_but_bounded).await?;
    world.fault("jobs that kill their workers");
    let mut died = 0;
    // Bounded by what the jobs may lose: three times three at most.
    for _ in 0..600 {
        for at in 0..world.workers.len() {
            if !world.workers[at].is_running() {
                died += 1;
                world.workers[at] = world.start_worker(4, &[]);
            }
        }
        if world.is_at_rest().await? {
            break;
        }
        sleep(Duration::from_millis(50)).await;
    }
    world.healed("jobs that kill their workers");
    ensure!((1..=9).contains(&died), "{died} workers died of three jobs that may be lost three times each");
    Ok(())
}

fn soon_but_bounded(job: NewJob) -> NewJob {
    let mut job = soon(job);
    job.retry.max_lease_losses = Some(3);
    job
}

pub(super) async fn schedulers_killed(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    let load = load(world, RATE, LOAD, plain(100))?;
    for at in [0, 1, 0, 1] {
        sleep(moment(world, Duration::from_secs(2))).await;
        world.fault("SIGKILL of a scheduler");
        world.schedulers[at].process.kill();
        sleep(moment(world, Duration::from_secs(1))).await;
        world.restart_scheduler(at).await?;
        world.healed("SIGKILL of a scheduler");
    }
    load.await?
}

pub(super) async fn schedulers_frozen(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    let load = load(world, RATE, LOAD, plain(100))?;
    for at in [0, 1] {
        sleep(moment(world, Duration::from_secs(1))).await;
        world.fault("SIGSTOP of a scheduler");
        world.schedulers[at].process.freeze();
        sleep(TTL + moment(world, TTL)).await;
        world.schedulers[at].process.thaw();
        world.healed("SIGSTOP of a scheduler");
    }
    load.await?
}

pub(super) async fn schedulers_replaced(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    let load = load(world, RATE, LOAD, plain(100))?;
    for at in [0, 1, 0, 1] {
        sleep(moment(world, Duration::from_secs(1))).await;
        world.fault("SIGTERM of a scheduler");
        world.schedulers[at].process.terminate();
        let status = world.schedulers[at].process.exit(Duration::from_secs(30)).await;
        ensure!(status.success(), "a drained scheduler ended with {status}");
        world.restart_scheduler(at).await?;
        world.healed("SIGTERM of a scheduler");
    }
    load.await?
}

pub(super) async fn everything_frozen(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    world.producer()?.enqueue(JOBS, mixed, soon).await?;
    for _ in 0..2 {
        sleep(moment(world, Duration::from_secs(1))).await;
        world.fault("SIGSTOP of everything");
        let all = || world.workers.iter().chain(world.schedulers.iter().map(|scheduler| &scheduler.process));
        all().chain(&world.reaper).for_each(testbed::Process::freeze);
        sleep(TTL * 2).await;
        all().chain(&world.reaper).for_each(testbed::Process::thaw);
        world.healed("SIGSTOP of everything");
    }
    Ok(())
}

pub(super) async fn reaper_frozen(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 4, 8).await?;
    world.producer()?.enqueue(JOBS, mixed, soon).await?;
    world.fault("SIGSTOP of the reaper, SIGKILL of a worker");
    world.reaper.iter().for_each(testbed::Process::freeze);
    sleep(moment(world, Duration::from_millis(500))).await;
    world.workers.swap_remove(0).kill();
    // A scheduler steps in.
    let rested = world.rest(Duration::from_secs(30)).await;
    world.reaper.iter().for_each(testbed::Process::thaw);
    world.healed("SIGSTOP of the reaper, SIGKILL of a worker");
    rested
}

pub(super) async fn single_attempts(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 2, 8).await?;
    world.producer()?.enqueue(40, |_| plain(400), once).await?;
    world.fault("SIGKILL of a worker");
    world.workers.swap_remove(0).kill();
    world.healed("SIGKILL of a worker");
    world.rest(TTL * 2 + Duration::from_secs(5)).await?;
    let dead = "select count(*), count(*) filter (where exists (
            select from fencepost.attempt_log a where a.job_id = d.job_id and a.ended = 'lost'))
        from fencepost.dead d";
    let (dead, lost): (i64, i64) = sqlx::query_as(dead).fetch_one(&mut world.connect().await?).await?;
    ensure!(dead > 0 && dead == lost, "{dead} jobs are dead, {lost} of them because their only lease was lost");
    Ok(())
}
