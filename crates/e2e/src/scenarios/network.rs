//! A network that fails.

use std::time::Duration;

use anyhow::ensure;
use rand::RngExt as _;
use tokio::time::sleep;

use super::{LOAD, RATE, load, plain};
use crate::{
    proxy::{Proxy, Way},
    world::{Scheduler, TTL, World},
};

/// Producers of the same keys.
const PRODUCERS: usize = 4;

/// Cuts at arbitrary bytes, this many.
const CUTS: usize = 60;

/// Within so many bytes.
const WITHIN: i64 = 20_000;

pub(super) async fn database_cut(world: &mut World) -> anyhow::Result<()> {
    cuts(world, "connection to the database cut", |scheduler| &scheduler.back).await
}

pub(super) async fn cut(world: &mut World) -> anyhow::Result<()> {
    cuts(world, "connection of a worker or producer cut", |scheduler| &scheduler.front).await
}

async fn cuts(world: &mut World, what: &str, proxy: fn(&Scheduler) -> &Proxy) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    let load = load(world, RATE * 2, LOAD, plain(50))?;
    for cut in 0..CUTS {
        let way = if world.rng.random() { Way::Up } else { Way::Down };
        let bytes = world.rng.random_range(1..WITHIN);
        world.fault(what);
        proxy(&world.schedulers[cut % 2]).cut_after(way, bytes);
        sleep(LOAD / u32::try_from(CUTS)?).await;
    }
    heal(world, what);
    load.await?
}

pub(super) async fn database_slow(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    let load = load(world, RATE, LOAD, plain(100))?;
    for delay in [Duration::from_millis(300), Duration::from_secs(8)] {
        sleep(Duration::from_secs(1).mul_f64(world.rng.random())).await;
        world.fault("slow answers of the database");
        for scheduler in &world.schedulers {
            scheduler.back.delay(Way::Down, delay);
        }
        sleep(TTL * 2).await;
        heal(world, "slow answers of the database");
    }
    load.await?
}

pub(super) async fn silent(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    let load = load(world, RATE, LOAD * 2, plain(100))?;
    for ways in [&[Way::Up, Way::Down][..], &[Way::Down], &[Way::Up], &[Way::Down]] {
        let at = world.rng.random_range(0..world.schedulers.len());
        world.fault("silence between workers and a scheduler");
        for &way in ways {
            world.schedulers[at].front.silence(way);
        }
        sleep((TTL * 2).mul_f64(world.rng.random())).await;
        heal(world, "silence between workers and a scheduler");
    }
    load.await?
}

pub(super) async fn same_keys(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    // They all enqueue the same keys, and do not know of each other.
    let producers = (0..PRODUCERS).map(|_| world.producer_of("shared")).collect::<anyhow::Result<Vec<_>>>()?;
    let mut load = tokio::task::JoinSet::new();
    for producer in producers {
        load.spawn(async move { producer.enqueue_paced(RATE * 2, LOAD, plain(10)).await });
    }
    for _ in 0..20 {
        sleep((LOAD / 20).mul_f64(world.rng.random())).await;
        world.fault("connections reset");
        for scheduler in &world.schedulers {
            scheduler.front.reset();
        }
        world.healed("connections reset");
    }
    while let Some(ended) = load.join_next().await {
        ended??;
    }
    let mut conn = world.connect().await?;
    let stored: i64 = sqlx::query_scalar("select count(*) from fencepost.job").fetch_one(&mut conn).await?;
    let keys = i64::from(RATE) * 2 * i64::try_from(LOAD.as_secs())?;
    ensure!(stored == keys, "{stored} jobs of {keys} keys");
    Ok(())
}

pub(super) async fn drains_silenced(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    let load = load(world, RATE * 2, LOAD, plain(50))?;
    let mut clean = true;
    for round in 0..4 {
        sleep(Duration::from_secs(1).mul_f64(world.rng.random())).await;
        world.fault("silence amid a drain");
        for scheduler in &world.schedulers {
            scheduler.front.silence(Way::Up);
        }
        let mut old = world.workers.swap_remove(round % 3);
        old.terminate();
        sleep(Duration::from_secs(2)).await;
        heal(world, "silence amid a drain");
        world.add_worker(8);
        clean &= old.exit(Duration::from_secs(20)).await.success();
    }
    load.await??;
    let mut conn = world.connect().await?;
    let lost: i64 = sqlx::query_scalar("select count(*) from fencepost.attempt_log where ended = 'lost'")
        .fetch_one(&mut conn)
        .await?;
    ensure!(
        !clean || lost == 0,
        "all workers said that everything they had was acknowledged, and {lost} leases were lost"
    );
    Ok(())
}

pub(super) async fn refused(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    let load = load(world, RATE, LOAD, plain(100))?;
    for round in 0..8 {
        let at = world.rng.random_range(0..world.schedulers.len());
        let back = world.rng.random();
        let Scheduler { front, back: database, .. } = &world.schedulers[at];
        let proxy = if back { database } else { front };
        world.fault("connections reset and refused");
        if round % 2 == 0 {
            proxy.reset();
        } else {
            proxy.refuse();
        }
        sleep(TTL.mul_f64(world.rng.random())).await;
        heal(world, "connections reset and refused");
    }
    load.await?
}

fn heal(world: &World, what: &str) {
    for scheduler in &world.schedulers {
        scheduler.front.heal();
        scheduler.back.heal();
    }
    world.healed(what);
}
