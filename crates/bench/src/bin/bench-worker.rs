//! The `bench-worker` binary.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let args = bench::WorkerArgs::parse();
    let telemetry = args.telemetry.clone();
    lifecycle::run("bench-worker", telemetry, |shutdown| bench::work(args, shutdown))
}
