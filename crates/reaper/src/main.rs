//! The `reaper` binary.

use std::process::ExitCode;

use clap::Parser;
use reaper::ReaperArgs;

fn main() -> ExitCode {
    let args = ReaperArgs::parse();
    lifecycle::run("reaper", args.telemetry.clone(), |shutdown| reaper::patrol(args, shutdown))
}
