//! The stock worker: runs a command or calls a URL for each job, without a line of Rust.

mod args;
mod command;
mod environment;
mod exec;
mod group;
mod groups;
mod guard;
mod handlers;
mod headers;
mod http;
mod output;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use lifecycle::Shutdown;
use worker::Report;

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
    let (worker, has_commands) = args.worker(&groups).context("set up the worker")?;
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
    acknowledged(&report.context("work")?)
}

/// Fails if results are left that may not have arrived, and says what becomes of their jobs.
fn acknowledged(report: &Report) -> anyhow::Result<()> {
    let Some((first, _)) = report.unacknowledged.first() else { return Ok(()) };
    anyhow::bail!(
        "stopped with {} jobs whose results no scheduler acknowledged, the first one {first}; a result that has not \
        arrived is a lost lease: its job runs again, or is dead if it has lost as many as it may",
        report.unacknowledged.len(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stops_with_unacknowledged_results_promises_no_more_than_holds() {
        assert!(acknowledged(&Report::default()).is_ok());
        let unacknowledged = vec![(7.try_into().unwrap(), 70.try_into().unwrap())];
        let error = acknowledged(&Report { unacknowledged, handlers_left: 0 }).unwrap_err().to_string();
        assert!(error.contains("1 jobs") && error.contains("the first one 7"), "{error}");
        assert!(error.contains("or is dead"), "{error}");
    }
}
