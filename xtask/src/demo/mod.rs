//! `cargo xtask demo`: real files through the whole system, a worker killed half-way, every result checked.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{bail, ensure};
use client::{Client, ConnectOptions};
use tokio::time::Instant;

use crate::{interrupt::Interrupt, probe, stack, stack::Stack};

mod enqueue;
mod files;
mod outcome;
mod progress;
mod report;
mod verify;

/// Workers to start with.
const WORKERS: u32 = 2;

/// What `cargo xtask demo` is told.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    stack: stack::Args,
    /// The folder whose files are read; default: the sources of this workspace's dependencies in cargo's registry.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The most files to read, spread evenly over those found.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    limit: u32,
    /// Leaves the system running at the end, until Ctrl-C.
    #[arg(long)]
    keep: bool,
}

/// Runs the demonstration. An error if a file's effect is missing or wrong.
pub async fn run(args: &Args, interrupt: &mut Interrupt) -> anyhow::Result<ExitCode> {
    stack::build(&args.stack, interrupt).await?;
    let files = files::collect(args.dir.as_deref(), args.limit, interrupt).await?;
    ensure!(!files.is_empty(), "there are no files to read");
    eprintln!("starting PostgreSQL, one scheduler, one reaper and {WORKERS} workers for {} files", files.len());
    let mut stack = Stack::start(&args.stack, "demo", stack::ports([0, 0])?, WORKERS).await?;
    let performed = tokio::select! {
        performed = perform(&mut stack, &files) => performed,
        () = interrupt.wait() => Err(anyhow::anyhow!("interrupted")),
    };
    if performed.is_ok() && args.keep {
        println!("{}\n{}\nCtrl-C stops it.", stack.url(), stack.psql_line());
        interrupt.wait().await;
    }
    let logs = stack.logs().to_owned();
    let stopped = stack.stop().await;
    report(&performed?, &logs)?;
    stopped?;
    Ok(ExitCode::SUCCESS)
}

/// What a run came to.
struct Performed {
    table: String,
    wrong: Vec<String>,
    files: usize,
}

async fn perform(stack: &mut Stack, files: &[PathBuf]) -> anyhow::Result<Performed> {
    let client = Client::connect(&ConnectOptions::new([stack.url()])).await?;
    let began = Instant::now();
    let enqueuing = tokio::spawn(enqueue::all(client.clone(), files.to_vec()));
    progress::follow(stack, &client, files.len(), enqueuing.abort_handle()).await?;
    let elapsed = began.elapsed();
    let jobs = enqueuing.await??;
    let outcomes = outcome::fetch(&client, &jobs).await?;
    let metrics = probe::get(stack.metrics(), "/metrics").await?;
    let wrong = verify::compare(files.to_vec(), outcomes.clone()).await?;
    Ok(Performed { table: report::table(&outcomes, &metrics, elapsed), wrong, files: files.len() })
}

fn report(performed: &Performed, logs: &Path) -> anyhow::Result<()> {
    println!("{}", performed.table);
    if performed.wrong.is_empty() {
        println!("{} files read again and compared: one effect each, all equal.", performed.files);
        return Ok(());
    }
    bail!(
        "{} of {} files have not the one effect that they should (logs: {}):\n  {}",
        performed.wrong.len(),
        performed.files,
        logs.display(),
        performed.wrong.join("\n  ")
    )
}

/// Between two looks at the queue.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
