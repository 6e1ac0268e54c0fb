//! `cargo xtask e2e`: faults injected into the whole system, and a checker that judges what came of it.

use std::{
    path::Path,
    process::{ExitCode, Stdio},
};

use tokio::process::Command;

use crate::{interrupt::Interrupt, pinned, run, service, workspace};

/// The packages whose programs take part.
const PACKAGES: [&str; 3] = ["scheduler", "reaper", "e2e"];

/// What `cargo xtask e2e` is told.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cargo xtask e2e                                        # every scenario once
  cargo xtask e2e --scenario worker-killed --seed 7      # one of them, as it went before
  cargo xtask e2e --for 30m                              # all of them over and over, each time in another way")]
pub struct Args {
    /// Only this scenario, or those that try a case such as S010; may be repeated.
    #[arg(long = "scenario", value_name = "NAME")]
    scenarios: Vec<String>,
    /// Lists the scenarios.
    #[arg(long)]
    list: bool,
    /// Decides what chance decides: the same seed brings the same schedule of faults. A new one for each run unless set.
    #[arg(long)]
    seed: Option<u64>,
    /// Goes on, scenario after scenario with ever new seeds, until the time is up.
    #[arg(long = "for", value_name = "TIME")]
    time: Option<String>,
    /// Scenarios that run at once, each in a system of its own. 2 unless set.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=16))]
    at_once: Option<u8>,
    /// Leaves the logs and the history of every scenario behind, not only of those that failed.
    #[arg(long)]
    keep: bool,
}

/// Runs the scenarios. The exit code tells whether all passed.
pub async fn run(args: &Args, interrupt: &mut Interrupt) -> anyhow::Result<ExitCode> {
    let mut build = run::cargo();
    build.args(["build", "--bins"]).args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    run::success(build, interrupt).await?;
    let mut command = command(args);
    if !args.list {
        command.env("FENCEPOST_PG_BIN", pinned::find_or_download().await?.folder());
    }
    let status = run::status(command, interrupt).await?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether a mount namespace can be made here.
fn can_mount() -> bool {
    let mut unshare = std::process::Command::new("unshare");
    unshare.args(["--mount", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
    unshare.status().is_ok_and(|status| status.success())
}

fn command(args: &Args) -> Command {
    let program = workspace::target().join("debug/e2e");
    let mut command = if can_mount() {
        // What is mounted there is gone with the last process of it, whatever happens.
        let mut command = service::command(Path::new("unshare"));
        command.args(["--mount", "--propagation", "private"]).arg(program).env("FENCEPOST_E2E_OWN_MOUNTS", "1");
        command
    } else {
        service::command(&program)
    };
    command.arg("--folder").arg(workspace::target().join("e2e"));
    command.args(args.list.then_some("--list")).args(args.keep.then_some("--keep"));
    command.args(args.scenarios.iter().flat_map(|name| ["--scenario", name]));
    if let Some(seed) = args.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    if let Some(at_once) = args.at_once {
        command.args(["--at-once", &at_once.to_string()]);
    }
    if let Some(time) = &args.time {
        command.args(["--for", time]);
    }
    command
}
