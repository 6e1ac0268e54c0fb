//! What must hold when nothing moves any more, besides what the checker looks at: the API, the metrics and the product's own audit
//! agree with the database, and no process has grown.

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::{Context as _, ensure};
use client::{Client, ConnectOptions};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::{
    worker::QUEUE,
    world::{Scheduler, World},
};

/// Memory that a process may have, in MiB. A scheduler of unoptimised code takes 60 with a few workers.
const MEMORY_MIB: u64 = 250;

/// Files and sockets that a process may have open, besides those of worker sessions.
const DESCRIPTORS: usize = 150;

/// Files and sockets for each worker session: a process may have all of them, and a worker has a runtime and a clock of its own.
const SESSION_DESCRIPTORS: usize = 8;

/// Sessions of the database that each scheduler may have.
const DATABASE_SESSIONS: usize = 24;

/// Lines that a process may log, in all.
const LOG_LINES: usize = 10_000;

/// For the metrics to be read anew, and for sockets of what has gone to be closed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Jobs by state.
type Counts = BTreeMap<&'static str, i64>;

/// Everything of it.
pub(crate) async fn check(world: &mut World) -> anyhow::Result<()> {
    audit(world).await?;
    let stored = stored(world).await?;
    for at in 0..world.schedulers.len() {
        let scheduler = &world.schedulers[at];
        let told = told(scheduler).await?;
        ensure!(told == stored, "scheduler {} tells {told:?} of the queue, and the database has {stored:?}", at + 1);
        let began = Instant::now();
        loop {
            let measured = measured(scheduler).await?;
            // They have no figure of what has ended well.
            if measured.iter().all(|(state, count)| stored.get(state) == Some(count)) {
                break;
            }
            ensure!(began.elapsed() < PATIENCE, "the metrics of scheduler {} are {measured:?}, not {stored:?}", at + 1);
            sleep(Duration::from_millis(200)).await;
        }
    }
    let began = Instant::now();
    while let Err(error) = bounded(world).await {
        ensure!(began.elapsed() < PATIENCE, "{error:#}");
        sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

/// The product's own audit finds nothing.
async fn audit(world: &World) -> anyhow::Result<()> {
    let mut reaper = world.start_audit();
    let status = reaper.exit(PATIENCE).await;
    ensure!(status.success(), "the audit ended with {status}:\n{}", reaper.log().join("\n"));
    Ok(())
}

async fn stored(world: &World) -> anyhow::Result<Counts> {
    let count = "select (select count(*) from fencepost.scheduled), (select count(*) from fencepost.ready),
        (select count(*) from fencepost.lease), (select count(*) from fencepost.finished where state = 'succeeded'),
        (select count(*) from fencepost.dead)";
    let mut conn = world.connect().await?;
    let (scheduled, ready, leased, succeeded, dead) = sqlx::query_as(count).fetch_one(&mut conn).await?;
    Ok(counts([scheduled, ready, leased, succeeded, dead]))
}

fn counts(counts: [i64; 5]) -> Counts {
    ["scheduled", "ready", "leased", "succeeded", "dead"].into_iter().zip(counts).collect()
}

async fn told(scheduler: &Scheduler) -> anyhow::Result<Counts> {
    let client = Client::lazy(&ConnectOptions::new([format!("http://{}", scheduler.address)]))?;
    let queues = client.queue_stats(&[]).await.context("ask a scheduler for its queues")?;
    let queue = queues.into_iter().find(|queue| queue.queue == QUEUE).context("the queue is not there")?;
    Ok(counts([queue.scheduled, queue.ready, queue.leased, queue.succeeded, queue.dead]))
}

async fn measured(scheduler: &Scheduler) -> anyhow::Result<Counts> {
    let mut stream = TcpStream::connect(scheduler.metrics).await.context("connect to a scheduler's metrics")?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await.context("read a scheduler's metrics")?;
    let one = |state: &str| {
        let line = page.lines().find(|line| {
            let labels = [format!("queue=\"{QUEUE}\""), format!("state=\"{state}\"")];
            line.starts_with("fencepost_queue_jobs{") && labels.iter().all(|label| line.contains(label))
        });
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(-1)
    };
    Ok(["scheduled", "ready", "leased", "dead"].map(|state| (state, one(state))).into())
}

async fn bounded(world: &World) -> anyhow::Result<()> {
    let mut conn = world.connect().await?;
    let sessions: i64 =
        sqlx::query_scalar("select count(*) from fencepost.worker_session where not dead").fetch_one(&mut conn).await?;
    let descriptors = DESCRIPTORS + usize::try_from(sessions)? * SESSION_DESCRIPTORS;
    for (name, process) in world.processes() {
        let (memory, open, lines) = (memory_mib(process.id()), open_files(process.id()), process.log().len());
        ensure!(memory <= MEMORY_MIB, "{name} has {memory} MiB of memory");
        ensure!(open <= descriptors, "{name} has {open} files and sockets open");
        ensure!(lines <= LOG_LINES, "{name} has logged {lines} lines");
    }
    let connected =
        "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()";
    let connected: i64 = sqlx::query_scalar(connected).fetch_one(&mut conn).await?;
    let (connected, bound) = (usize::try_from(connected)?, DATABASE_SESSIONS * world.schedulers.len());
    ensure!(connected <= bound, "{connected} sessions of the database are open, more than {bound}");
    Ok(())
}

fn memory_mib(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1_024
}

fn open_files(process: u32) -> usize {
    fs::read_dir(format!("/proc/{process}/fd")).map_or(0, Iterator::count)
}
