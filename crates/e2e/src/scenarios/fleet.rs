//! Many processes at once.

use std::time::Duration;

use anyhow::ensure;
use rand::RngExt as _;
use tokio::time::{Instant, sleep};

use super::plain;
use crate::world::World;

/// Schedulers that start together.
const SCHEDULERS: usize = 10;

pub(super) async fn ten_schedulers(world: &mut World) -> anyhow::Result<()> {
    world.fault("ten migrations at once, one of them killed");
    let mut migrations: Vec<_> = (0..SCHEDULERS).map(|_| world.start_migration()).collect();
    sleep(Duration::from_millis(300).mul_f64(world.rng.random())).await;
    migrations[0].kill();
    for migration in &mut migrations[1..] {
        let status = migration.exit(Duration::from_mins(1)).await;
        ensure!(status.success(), "a migration ended with {status}:\n{}", migration.log().join("\n"));
    }
    world.healed("ten migrations at once, one of them killed");
    world.add_schedulers(SCHEDULERS).await?;
    world.add_worker(8);
    world.add_reaper(Duration::from_secs(1));
    world.producer()?.enqueue(100, |_| plain(10), |job| job).await
}

/// Workers that reconnect together.
const WORKERS: u32 = 300;

/// Hellos that each of them may need, on average, after an outage.
const HELLOS: i64 = 4;

pub(super) async fn reconnect_storm(world: &mut World) -> anyhow::Result<()> {
    world.ttl = Duration::from_secs(15);
    world.add_schedulers(2).await?;
    world.add_reaper(Duration::from_secs(1));
    let instances = WORKERS.to_string();
    let worker = world.start_worker(2, &["--instances", &instances]);
    world.workers.push(worker);
    let within = Duration::from_secs(30);
    connected(world, within).await?;
    let hellos = "select sum(epoch)::bigint from fencepost.worker_session";
    let mut conn = world.connect().await?;
    let before: i64 = sqlx::query_scalar(hellos).fetch_one(&mut conn).await?;
    world.fault("outage of all schedulers");
    world.schedulers.iter_mut().for_each(|scheduler| scheduler.process.kill());
    sleep(Duration::from_secs(4)).await;
    let marked = "create temporary table known as select session_no, epoch from fencepost.worker_session";
    sqlx::raw_sql(marked).execute(&mut conn).await?;
    for at in 0..2 {
        world.restart_scheduler(at).await?;
    }
    world.healed("outage of all schedulers");
    let back = "select count(*) from fencepost.worker_session s left join known k using (session_no)
        where not s.dead and s.epoch > coalesce(k.epoch, 0)";
    let began = Instant::now();
    loop {
        let back: i64 = sqlx::query_scalar(back).fetch_one(&mut conn).await?;
        if back >= i64::from(WORKERS) {
            break;
        }
        ensure!(began.elapsed() < within, "{back} of {WORKERS} workers are back after {within:?}");
        sleep(Duration::from_millis(100)).await;
    }
    let after: i64 = sqlx::query_scalar(hellos).fetch_one(&mut conn).await?;
    ensure!(after - before <= HELLOS * i64::from(WORKERS), "{} Hellos of {WORKERS} workers: a storm", after - before);
    world.producer()?.enqueue(300, |_| plain(10), |job| job).await
}

async fn connected(world: &World, within: Duration) -> anyhow::Result<()> {
    let mut conn = world.connect().await?;
    let began = Instant::now();
    loop {
        let open = "select count(*) from fencepost.worker_session where not dead and expires_at > now()";
        let open: i64 = sqlx::query_scalar(open).fetch_one(&mut conn).await?;
        if open >= i64::from(WORKERS) {
            return Ok(());
        }
        ensure!(began.elapsed() < within, "{open} of {WORKERS} workers are connected after {within:?}");
        sleep(Duration::from_millis(100)).await;
    }
}
