//! The stock worker: runs a command or calls a URL for each job, without a line of Rust.

mod args;
mod command;
mod exec;
mod http;
mod output;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use lifecycle::Shutdown;

use crate::args::Args;

fn main() -> ExitCode {
    let args = Args::parse();
    let telemetry = args.telemetry.clone();
    lifecycle::run("worker", telemetry, |shutdown| run(args, shutdown))
}

async fn run(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    let worker = args.worker().context("set up the worker")?;
    let report = worker.run(shutdown).await.context("work")?;
    anyhow::ensure!(
        report.unacknowledged.is_empty(),
        "stopped with {} jobs whose results no scheduler acknowledged, the first one {}; they are given back and run again",
        report.unacknowledged.len(),
        report.unacknowledged.first().map_or_else(String::new, |(job, _)| job.to_string()),
    );
    Ok(())
}
