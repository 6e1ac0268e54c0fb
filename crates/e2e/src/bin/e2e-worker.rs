//! The `e2e-worker` binary.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let args = e2e::WorkerArgs::parse();
    let telemetry = args.telemetry.clone();
    lifecycle::run("e2e-worker", telemetry, |shutdown| e2e::work(args, shutdown))
}
