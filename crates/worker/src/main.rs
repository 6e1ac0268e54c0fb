//! The stock worker: runs a command or calls a URL for each job, without a line of Rust.

mod args;
mod command;
mod environment;
mod exec;
mod group;
mod groups;
mod guard;
mod headers;
mod http;
mod output;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use lifecycle::Shutdown;

use crate::args::Args;
use crate::groups::Groups;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    // Not in the hands of clap: what is set for the worker is not the guard's to judge.
    if arguments.next().is_some_and(|first| first == guard::SUBCOMMAND) {
        return guard::run(arguments.filter_map(|group| group.into_string().ok()));
    }
    let args = Args::parse();
    let telemetry = args.telemetry.clone();
    lifecycle::run("worker", telemetry, |shutdown| run(args, shutdown))
}

async fn run(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    let groups = Arc::new(Groups::default());
    let has_commands = args.has_commands();
    let worker = args.worker(&groups).context("set up the worker")?;
    let report = if has_commands {
        let guard = groups.start_guard().await?;
        tokio::select! {
            report = worker.run(shutdown) => report,
            // Commands that nobody would end must not run.
            error = groups.keep_guard(guard) => return Err(error),
        }
    } else {
        worker.run(shutdown).await
    };
    let report = report.context("work")?;
    anyhow::ensure!(
        report.unacknowledged.is_empty(),
        "stopped with {} jobs whose results no scheduler acknowledged, the first one {}; they are given back and run again",
        report.unacknowledged.len(),
        report.unacknowledged.first().map_or_else(String::new, |(job, _)| job.to_string()),
    );
    Ok(())
}
