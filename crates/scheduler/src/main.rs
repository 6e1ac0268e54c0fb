//! The `scheduler` binary.

use std::process::ExitCode;

use clap::Parser;
use scheduler::{Args, Command};

fn main() -> ExitCode {
    let args = Args::parse();
    match args.command {
        Some(Command::Migrate(migrate)) => {
            lifecycle::run("scheduler", migrate.telemetry.clone(), |_| scheduler::migrate(migrate))
        }
        Some(Command::Serve(serve)) => {
            lifecycle::run("scheduler", serve.telemetry.clone(), |shutdown| scheduler::serve(*serve, shutdown))
        }
        None => {
            lifecycle::run("scheduler", args.serve.telemetry.clone(), |shutdown| scheduler::serve(args.serve, shutdown))
        }
    }
}
