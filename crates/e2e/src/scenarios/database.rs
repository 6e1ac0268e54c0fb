//! A database server that fails.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use private_postgres::Halt;
use rand::RngExt as _;
use sqlx::PgConnection;
use tokio::time::sleep;

use super::{LOAD, RATE, load, plain};
use crate::world::{TTL, World};

pub(super) async fn restarted(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    let load = load(world, RATE, LOAD * 2, plain(100))?;
    for (how, away) in [(Halt::Crash, Duration::ZERO), (Halt::Fast, TTL / 2), (Halt::Crash, TTL * 2)] {
        sleep(Duration::from_secs(2).mul_f64(world.rng.random())).await;
        world.fault("restart of the database");
        tokio::task::block_in_place(|| world.server.halt(how))?;
        sleep(away).await;
        tokio::task::block_in_place(|| world.server.resume())?;
        world.healed("restart of the database");
    }
    load.await?
}

pub(super) async fn sessions_killed(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    let load = load(world, RATE, LOAD, plain(100))?;
    let mut conn = world.connect().await?;
    for _ in 0..40 {
        sleep(Duration::from_millis(300).mul_f64(world.rng.random())).await;
        world.fault("sessions of the database killed");
        let kill = "select pg_terminate_backend(pid) from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid()";
        sqlx::query(kill).execute(&mut conn).await?;
        world.healed("sessions of the database killed");
    }
    load.await?
}

pub(super) async fn locked(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    let load = load(world, RATE, LOAD, plain(100))?;
    let mut conn = world.connect().await?;
    let locks = [
        "begin; lock table fencepost.lease in access exclusive mode",
        "begin; lock table fencepost.ready in access exclusive mode",
        "begin; lock table fencepost.finished in access exclusive mode",
        "begin; lock table fencepost.worker_session in access exclusive mode",
    ];
    for lock in locks {
        sleep(Duration::from_secs(1).mul_f64(world.rng.random())).await;
        world.fault("a table of the database locked");
        sqlx::raw_sql(lock).execute(&mut conn).await?;
        sleep(TTL / 2).await;
        sqlx::raw_sql("commit").execute(&mut conn).await?;
        world.healed("a table of the database locked");
    }
    load.await?
}

pub(super) async fn listeners_killed(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    let load = load(world, RATE, LOAD, plain(100))?;
    let mut conn = world.connect().await?;
    let mut killed = 0;
    for _ in 0..20 {
        sleep(Duration::from_millis(500)).await;
        world.fault("listening session of the database killed");
        let kill = "select count(pg_terminate_backend(pid)) from pg_stat_activity where query ilike 'listen %'";
        killed += sqlx::query_scalar::<_, i64>(kill).fetch_one(&mut conn).await?;
        world.healed("listening session of the database killed");
    }
    ensure!(killed > 0, "nobody listens");
    load.await?
}

pub(super) async fn read_only(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    let load = load(world, RATE, LOAD, plain(100))?;
    let mut conn = world.connect().await?;
    for _ in 0..2 {
        sleep(Duration::from_secs(1).mul_f64(world.rng.random())).await;
        world.fault("database read-only");
        set(&mut conn, "alter system set default_transaction_read_only = on").await?;
        sleep(TTL / 2 + TTL.mul_f64(world.rng.random())).await;
        set(&mut conn, "alter system reset default_transaction_read_only").await?;
        world.healed("database read-only");
    }
    load.await?
}

async fn set(conn: &mut PgConnection, setting: &'static str) -> anyhow::Result<()> {
    sqlx::raw_sql(setting).execute(&mut *conn).await?;
    sqlx::query("select pg_reload_conf()").execute(conn).await?;
    Ok(())
}

pub(super) async fn out_of_connections(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    let load = load(world, RATE, LOAD, plain(100))?;
    let mut conn = world.connect().await?;
    for _ in 0..2 {
        sleep(Duration::from_secs(1)).await;
        world.fault("no connection to the database left");
        let kill = "select pg_terminate_backend(pid) from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid()";
        sqlx::query(kill).execute(&mut conn).await?;
        let mut taken = Vec::new();
        while let Ok(one) = world.connect().await {
            taken.push(one);
        }
        sleep(TTL / 2 + TTL.mul_f64(world.rng.random())).await;
        drop(taken);
        world.healed("no connection to the database left");
    }
    load.await?
}

pub(super) async fn snapshot_held(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    let mut conn = world.connect().await?;
    world.fault("a transaction held open");
    sqlx::raw_sql("begin isolation level repeatable read; select count(*) from fencepost.job")
        .execute(&mut conn)
        .await?;
    let producer = world.producer()?;
    producer.enqueue_paced(RATE * 4, LOAD, plain(10)).await?;
    world.rest(Duration::from_secs(15)).await?;
    sqlx::raw_sql("commit").execute(&mut conn).await?;
    world.healed("a transaction held open");
    Ok(())
}

pub(super) async fn failed_over(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    let standby = world.add_standby().await?;
    let load = load(world, RATE, LOAD, plain(100))?;
    sleep(Duration::from_secs(2) + Duration::from_secs(2).mul_f64(world.rng.random())).await;
    world.fault("failover of the database");
    tokio::task::block_in_place(|| world.server.halt(Halt::Crash))?;
    world.fail_over(standby).await?;
    world.healed("failover of the database");
    load.await?
}

pub(super) async fn disk_full(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    let load = load(world, RATE, LOAD * 2, plain(100))?;
    for _ in 0..2 {
        sleep(Duration::from_secs(2)).await;
        world.fault("a full disk of the database");
        let disk = world.disk.as_ref().context("the database has a disk of its own")?;
        tokio::task::block_in_place(|| disk.fill())?;
        sleep(TTL + TTL.mul_f64(world.rng.random())).await;
        let disk = world.disk.as_ref().context("the database has a disk of its own")?;
        disk.free()?;
        // Without room for its log it crashes, and does not come back by itself.
        tokio::task::block_in_place(|| world.server.halt(Halt::Crash).and_then(|()| world.server.resume()))?;
        world.healed("a full disk of the database");
    }
    load.await?
}
