//! The flags of `e2e`. The hidden one comes from `cargo xtask e2e`.

use std::{path::PathBuf, time::Duration};

use clap::Parser;

/// Injects faults into real processes and judges what came of it.
#[derive(Debug, Parser)]
#[command(name = "e2e", bin_name = "cargo xtask e2e")]
pub struct Args {
    /// Only this scenario, or those that try a case such as S010; may be repeated.
    #[arg(long = "scenario", value_name = "NAME")]
    pub(crate) scenarios: Vec<String>,
    /// Lists the scenarios.
    #[arg(long)]
    pub(crate) list: bool,
    /// Decides what chance decides: the same seed brings the same schedule of faults. A new one for each run unless set.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Goes on, scenario after scenario with ever new seeds, until the time is up.
    #[arg(long = "for", value_name = "TIME", value_parser = lifecycle::duration)]
    pub(crate) time: Option<Duration>,
    /// Scenarios that run at once, each in a system of its own.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) at_once: u8,
    /// Leaves the logs and the history of every scenario behind, not only of those that failed.
    #[arg(long)]
    pub(crate) keep: bool,
    /// The folder for logs and histories.
    #[arg(long, hide = true, default_value = "target/e2e")]
    pub(crate) folder: PathBuf,
}
