//! The producer and the judge of `cargo xtask demo`, which starts the system and this program beside it.
//!
//! Enqueues one job for each file, shows the progress, and at the end reads every file again to compare it with the effect of its
//! job. Half-way it writes the line [`HALFWAY`] to standard output and waits for a line on standard input that says what
//! was done to the workers; the rest of its output is for people. It is a program of its own so that cargo builds it together
//! with the rest of the system, and `xtask` stays small.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use anyhow::{bail, ensure};
use clap::Parser;
use client::{Client, ConnectOptions};
use tokio::time::Instant;

mod digest;
mod enqueue;
mod files;
mod metrics;
mod outcome;
mod progress;
mod report;
mod verify;

/// What is written when it is time to kill a worker.
const HALFWAY: &str = "halfway";

/// Sends files through a running system and judges the outcome.
#[derive(Debug, Parser)]
struct Args {
    /// The scheduler's gRPC address.
    #[arg(long, value_name = "URL")]
    scheduler: String,
    /// The scheduler's metrics address.
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: SocketAddr,
    /// The queue that the workers listen to.
    #[arg(long)]
    queue: String,
    /// The folder whose files are read; default: the sources of the workspace's dependencies in cargo's registry.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The most files to read.
    #[arg(long)]
    limit: usize,
}

fn main() -> ExitCode {
    match perform(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn perform(args: &Args) -> anyhow::Result<()> {
    let files = files::collect(args.dir.as_deref(), args.limit).await?;
    ensure!(!files.is_empty(), "there are no files to read");
    eprintln!("one job for each of {} files", files.len());
    let client = Client::connect(&ConnectOptions::new([&args.scheduler])).await?;
    let began = Instant::now();
    // The first failure of either ends both.
    let enqueuing = enqueue::all(&client, &args.queue, &files);
    let (jobs, ()) = tokio::try_join!(enqueuing, progress::follow(&client, &args.queue, files.len()))?;
    let elapsed = began.elapsed();
    let outcomes = outcome::fetch(&client, &jobs).await?;
    let metrics = metrics::get(args.metrics, "/metrics").await?;
    println!("{}", report::table(&outcomes, &metrics, elapsed));
    judge(files, outcomes).await
}

async fn judge(files: Vec<PathBuf>, outcomes: Vec<outcome::Outcome>) -> anyhow::Result<()> {
    let count = files.len();
    let wrong = verify::compare(files, outcomes).await?;
    if !wrong.is_empty() {
        let (lines, some) = (wrong.join("\n  "), wrong.len());
        bail!("{some} of {count} files have not the one effect that they should:\n  {lines}");
    }
    println!("{count} files read again and compared: one effect each, all equal.");
    Ok(())
}
