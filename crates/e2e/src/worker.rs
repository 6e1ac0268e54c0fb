//! The worker of the scenarios: its handlers do what their payload says and write down what they did, beside and not through the
//! product.

use std::{path::PathBuf, sync::Arc, time::Duration};

use ::worker::{Context, HandlerError, Success, Worker};
use clap::Parser;
use lifecycle::{ConnectArgs, Shutdown};
use serde::{Deserialize, Serialize};
use telemetry::TelemetryArgs;
use tokio::time::sleep;

use crate::history::{Attempt, Event, How, Log};

/// The queue of all scenarios.
pub(crate) const QUEUE: &str = "e2e";

/// The kind of all jobs.
pub(crate) const KIND: &str = "e2e.step";

/// What a handler is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// For how long it works, in milliseconds.
    pub(crate) ms: u64,
    /// How many attempts fail before one succeeds.
    pub(crate) fails: u32,
    /// What it does when it is told to stop.
    pub(crate) manners: Manners,
}

/// What a handler does besides working.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Manners {
    /// Stops when it is told to.
    Polite,
    /// Goes on although it is told to stop.
    Deaf,
    /// Keeps its thread busy and looks at nothing.
    Busy,
    /// Ends the whole process.
    Deadly,
}

/// A worker that writes a history.
#[derive(Debug, Parser)]
#[command(name = "e2e-worker")]
pub struct WorkerArgs {
    /// Name of the worker.
    #[arg(long)]
    name: String,
    /// The folder of the history.
    #[arg(long)]
    history: PathBuf,
    /// Jobs at once.
    #[arg(long)]
    slots: u32,
    /// Workers in this process, each with a session and a connection of its own.
    #[arg(long, default_value_t = 1)]
    instances: u32,
    /// How long a drain lets handlers run.
    #[arg(long, default_value = "5s", value_parser = lifecycle::duration)]
    drain_grace: Duration,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Logs and metrics.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

/// Works until told to stop.
pub async fn work(args: WorkerArgs, shutdown: Shutdown) -> anyhow::Result<()> {
    let runs = (1..=args.instances).map(|number| {
        // Not one name for two processes: what one runs is not what the other runs.
        let name = format!("{}.{}.{number}", args.name, std::process::id());
        let log = Log::open(&args.history, &name)?;
        log.write(Event::Opened { slots: args.slots as usize });
        let log = Arc::new(log);
        let builder = Worker::builder().connect(args.connect.options()?).queues([QUEUE]).concurrency(args.slots);
        let builder = builder.name(&name).drain_grace(args.drain_grace).cancel_grace(Duration::from_secs(2));
        let worker = builder.handler(KIND, move |job| step(job, log.clone())).build()?;
        anyhow::Ok(worker.run(shutdown.clone()))
    });
    let runs: Vec<_> = runs.collect::<Result<_, _>>()?;
    for report in futures::future::try_join_all(runs).await? {
        anyhow::ensure!(report.unacknowledged.is_empty(), "left behind: {report:?}");
    }
    Ok(())
}

/// Does what the payload says. The result and the effect are the token, so that it shows whose they are.
async fn step(job: Context, log: Arc<Log>) -> Result<Success, HandlerError> {
    let attempt = Attempt { job: job.job_id().get(), token: job.token().get(), number: job.attempt() };
    log.write(Event::Started(attempt));
    let mut running = Running { attempt, how: How::Dropped, log };
    let step: Step = serde_json::from_slice(job.payload())?;
    let time = Duration::from_millis(step.ms);
    let how = match step.manners {
        Manners::Deadly => std::process::abort(),
        Manners::Busy => {
            std::thread::park_timeout(time);
            How::Succeeded
        }
        Manners::Deaf => {
            sleep(time).await;
            How::Succeeded
        }
        Manners::Polite => tokio::select! {
            () = sleep(time) => How::Succeeded,
            () = job.cancellation().cancelled() => How::Stopped,
        },
    };
    let how = if how == How::Succeeded && job.attempt() <= step.fails { How::Failed } else { how };
    running.how = how;
    drop(running);
    let token = attempt.token.to_string();
    match how {
        How::Succeeded => {
            Ok(Success { result: Some(token.clone().into()), effect: Some(token.into()), ..Success::default() })
        }
        How::Failed => Err(HandlerError::retryable("asked_to", "the payload asks for a failure")),
        // The worker knows why, and releases the job if it is stopping itself.
        How::Stopped | How::Dropped => Err(HandlerError::retryable("stopped", "told to stop")),
    }
}

/// Writes down how a handler ends, also if it is dropped.
struct Running {
    attempt: Attempt,
    how: How,
    log: Arc<Log>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.log.write(Event::Ended { attempt: self.attempt, how: self.how });
    }
}
