//! The worker of the bench: what a user would write on the library, with handlers that do nothing.

use std::{
    io::{self, Write as _},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::ensure;
use clap::Parser;
use futures::future::try_join_all;
use lifecycle::{ConnectArgs, Shutdown};
use serde_json::json;
use telemetry::TelemetryArgs;
use worker::{Context, HandlerError, Success, Worker};

use crate::{
    jobs::{HOLD, NOOP, QUEUE},
    latency::Latency,
    payload,
};

/// How often the number of jobs handled so far is written.
const PROGRESS_PAUSE: Duration = Duration::from_millis(10);

/// Handlers hold on to their jobs until they are told to stop, so a drain need not wait for them.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

/// A worker whose handlers do nothing. Writes the number of jobs handled so far to standard output, one a line, and at its end a line of JSON.
#[derive(Debug, Parser)]
#[command(name = "bench-worker")]
pub struct WorkerArgs {
    /// Name of the worker, for people.
    #[arg(long)]
    name: String,
    /// Jobs that each worker runs at once.
    #[arg(long)]
    slots: u32,
    /// Workers in this process, each with a session and a connection of its own.
    #[arg(long, default_value_t = 1)]
    instances: u32,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Logs and metrics.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

/// What the handlers of one process have seen.
struct Seen {
    handled: AtomicU64,
    latency: Mutex<Latency>,
}

/// Works until told to stop.
pub async fn work(args: WorkerArgs, shutdown: Shutdown) -> anyhow::Result<()> {
    let seen = Arc::new(Seen { handled: AtomicU64::new(0), latency: Mutex::new(Latency::new()?) });
    let workers = (0..args.instances).map(|n| build(&args, n, &seen)).collect::<anyhow::Result<Vec<_>>>()?;
    let running = try_join_all(workers.into_iter().map(|worker| worker.run(shutdown.clone())));
    let reports = tokio::select! {
        reports = running => reports?,
        error = tell(&seen) => return Err(error.into()),
    };
    let latency = seen.latency.lock().unwrap_or_else(PoisonError::into_inner).to_json();
    say(&json!({ "handled": seen.handled.load(Ordering::Relaxed), "latency": latency }).to_string())?;
    let unacknowledged: usize = reports.iter().map(|report| report.unacknowledged.len()).sum();
    ensure!(unacknowledged == 0, "stopped with {unacknowledged} results that no scheduler acknowledged");
    Ok(())
}

fn build(args: &WorkerArgs, number: u32, seen: &Arc<Seen>) -> anyhow::Result<Worker> {
    let seen = seen.clone();
    let noop = move |job: Context| {
        seen.note(job.payload());
        async { Ok::<_, HandlerError>(Success::default()) }
    };
    let builder = Worker::builder().connect(args.connect.options()?).queues([QUEUE]).concurrency(args.slots);
    let builder = builder.name(format!("{}-{number}", args.name)).drain_grace(DRAIN_GRACE);
    Ok(builder.handler(NOOP, noop).handler(HOLD, hold).build()?)
}

async fn hold(job: Context) -> Result<Success, HandlerError> {
    job.cancellation().cancelled().await;
    Ok(Success::default())
}

impl Seen {
    fn note(&self, payload: &[u8]) {
        if let Some(nanos) = payload::age(payload) {
            self.latency.lock().unwrap_or_else(PoisonError::into_inner).record(nanos);
        }
        self.handled.fetch_add(1, Ordering::Relaxed);
    }
}

/// Writes the number of jobs handled whenever it has changed; returns when that fails.
async fn tell(seen: &Seen) -> io::Error {
    let mut told = 0;
    loop {
        tokio::time::sleep(PROGRESS_PAUSE).await;
        let handled = seen.handled.load(Ordering::Relaxed);
        if handled != told
            && let Err(error) = say(&handled.to_string())
        {
            return error;
        }
        told = handled;
    }
}

fn say(line: &str) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{line}")
}
