//! The flags of `bench`. The hidden ones come from `cargo xtask bench`.

use std::path::PathBuf;

use clap::Parser;

/// Measures a system that it starts itself.
#[derive(Debug, Parser)]
#[command(name = "bench", bin_name = "cargo xtask bench")]
pub struct Args {
    /// Everything scaled down, and one run of each; without --scenario the main ones, in about a minute once it is built.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only this scenario, or all of a group (`main`, `flat`); may be repeated.
    #[arg(long = "scenario", value_name = "NAME")]
    pub(crate) scenarios: Vec<String>,
    /// Runs of each scenario; the median counts. 3, or 1 with --quick.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: Option<u32>,
    /// Lists the scenarios.
    #[arg(long)]
    pub(crate) list: bool,
    /// Writes the figures to this file too.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) server: Server,
}

/// The machine to measure on, as `cargo xtask bench` has set it up.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Server {
    /// The folder of `scheduler` and `bench-worker`.
    #[arg(long, hide = true, default_value = "target/release")]
    pub(crate) programs: PathBuf,
    /// The folder of logs.
    #[arg(long, hide = true, default_value = "target/bench")]
    pub(crate) logs: PathBuf,
    /// `psql`.
    #[arg(long, hide = true, default_value = "psql")]
    pub(crate) psql: PathBuf,
    /// The database server's first process.
    #[arg(long, hide = true, default_value_t = 0)]
    pub(crate) postmaster: u32,
    /// An existing database of that server, as its superuser.
    #[arg(long, hide = true, env = "FENCEPOST_BENCH_DATABASE_URL", hide_env_values = true, default_value = "")]
    pub(crate) database_url: String,
    /// What differs from a stock PostgreSQL, for people.
    #[arg(long, hide = true, default_value = "")]
    pub(crate) settings: String,
}
