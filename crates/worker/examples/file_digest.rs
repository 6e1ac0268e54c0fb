//! A worker of one's own: reads the file that its payload names and commits what it holds as the job's effect.
//!
//! ```sh
//! cargo run --example file_digest -- --queue files --concurrency 4
//! ```
//!
//! The effect and the result are JSON: `{"sha256":"…","bytes":123,"lines":4}`. A file that is not there fails the job
//! for good; one that cannot be read is tried again.

use std::fmt::Write;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use lifecycle::{ConnectArgs, Shutdown};
use sha2::{Digest, Sha256};
use telemetry::TelemetryArgs;
use worker::{Context, HandlerError, Success, Worker};

/// The kind of job that this worker runs.
const KIND: &str = "file.digest";
/// Bytes read at a time.
const CHUNK: usize = 64 << 10;

/// Computes digests of files.
#[derive(Debug, Parser)]
struct Args {
    /// Queues to work on, the most important first.
    #[arg(long = "queue", visible_alias = "queues", env = "FENCEPOST_QUEUES", value_delimiter = ',')]
    #[arg(default_value = "default")]
    queues: Vec<String>,
    /// Jobs that run at once.
    #[arg(long, env = "WORKER_CONCURRENCY", default_value_t = worker::DEFAULT_CONCURRENCY)]
    concurrency: u32,
    /// Name for people.
    #[arg(long, env = "FENCEPOST_WORKER_NAME")]
    name: Option<String>,
    /// How long running jobs may go on after SIGTERM.
    #[arg(long, env = "FENCEPOST_DRAIN_GRACE", default_value = "25s", value_parser = lifecycle::duration)]
    grace: Duration,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let telemetry = args.telemetry.clone();
    lifecycle::run("file_digest", telemetry, |shutdown| run(args, shutdown))
}

async fn run(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    let mut worker = Worker::builder()
        .connect(args.connect.options()?)
        .queues(args.queues)
        .concurrency(args.concurrency)
        .drain_grace(args.grace)
        .handler(KIND, digest);
    if let Some(name) = args.name {
        worker = worker.name(name);
    }
    let report = worker.build()?.run(shutdown).await?;
    anyhow::ensure!(report.unacknowledged.is_empty(), "stopped with results that no scheduler acknowledged");
    Ok(())
}

async fn digest(job: Context) -> Result<Success, HandlerError> {
    let payload = job.payload().to_vec();
    let path = String::from_utf8(payload).map_err(|_| HandlerError::permanent("bad_path", "the path is not UTF-8"))?;
    // Reading blocks, so it has a thread of its own; it looks at the cancellation between chunks.
    let read = tokio::task::spawn_blocking(move || describe(Path::new(&path), &job));
    let described = read.await??;
    Ok(Success { result: Some(described.clone().into()), effect: Some(described.into()), ..Success::default() })
}

fn describe(path: &Path, job: &Context) -> Result<String, HandlerError> {
    let file = std::fs::File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => HandlerError::permanent("not_found", error.to_string()),
        _ => HandlerError::retryable("open", error.to_string()),
    })?;
    let mut file = BufReader::new(file);
    let (mut hash, mut bytes, mut lines) = (Sha256::new(), 0_u64, 0_u64);
    let mut chunk = vec![0; CHUNK];
    loop {
        if job.cancellation().is_cancelled() {
            return Err(HandlerError::retryable("interrupted", "the attempt was cancelled"));
        }
        let read = file.read(&mut chunk)?;
        if read == 0 {
            break;
        }
        hash.update(&chunk[..read]);
        bytes += read as u64;
        lines += chunk[..read].iter().map(|byte| u64::from(*byte == b'\n')).sum::<u64>();
    }
    let mut sha256 = String::new();
    hash.finalize().iter().try_for_each(|byte| write!(sha256, "{byte:02x}"))?;
    Ok(format!(r#"{{"sha256":"{sha256}","bytes":{bytes},"lines":{lines}}}"#))
}
