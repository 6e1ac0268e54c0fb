//! `cargo xtask bench`: what the system does per second and per job on this machine, each figure beside its floor.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{ExitCode, ExitStatus},
};

use anyhow::{Context as _, ensure};
use private_postgres::{Options, PrivatePostgres};
use tokio::process::Command;

use crate::{interrupt::Interrupt, postgres, run, service, workspace};

/// What a guide for users would set, and nothing that costs durability. All else is as PostgreSQL comes.
const SETTINGS: [(&str, &str); 4] =
    [("shared_buffers", "256MB"), ("max_wal_size", "8GB"), ("checkpoint_timeout", "15min"), ("max_connections", "200")];

/// Counts statements. It comes with PostgreSQL, but distributions may leave it out.
const COUNTER: &str = "pg_stat_statements";

/// What `cargo xtask bench` is told.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Everything scaled down, and one run of each; without --scenario the main ones, in about a minute once it is built.
    #[arg(long)]
    quick: bool,
    /// Only this scenario, or all of a group (`main`, `flat`); may be repeated.
    #[arg(long = "scenario", value_name = "NAME")]
    scenarios: Vec<String>,
    /// Runs of each scenario; the median counts. 3, or 1 with --quick.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: Option<u32>,
    /// Runs the optimised programs as they were built last; building them takes minutes the first time.
    #[arg(long)]
    no_build: bool,
    /// Lists the scenarios.
    #[arg(long)]
    list: bool,
    /// Writes the figures to this file too, as an array with one object for each scenario.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the bench. An error if a scenario is broken, never because of a figure.
pub async fn run(args: &Args, interrupt: &mut Interrupt) -> anyhow::Result<ExitCode> {
    let built = programs().join("bench").is_file();
    // A list needs no newest programs.
    if !(args.no_build || args.list && built) {
        build(interrupt).await?;
    }
    ensure!(programs().join("bench").is_file(), "nothing is built yet: leave --no-build out");
    if args.list {
        return Ok(code(run::status(command(args), interrupt).await?));
    }
    let settings = settings().await?;
    let folder = workspace::target().join("bench");
    std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let lock = folder.join("lock");
    let lock = File::create(&lock).with_context(|| format!("create {}", lock.display()))?;
    ensure!(lock.try_lock().is_ok(), "another bench is running here: two would disturb each other");
    let log = Some(folder.join("postgres.log"));
    let server =
        postgres::start(Options { fsync: true, settings: settings.clone(), log, ..Options::default() }).await?;
    let measured = measure(args, &server, &folder, &shown(&settings), interrupt).await;
    let stopped = postgres::stop(server).await;
    let status = measured?;
    stopped?;
    Ok(code(status))
}

async fn build(interrupt: &mut Interrupt) -> anyhow::Result<()> {
    let mut cargo = run::cargo();
    cargo.args(["build", "--release", "--package", "scheduler", "--package", "bench", "--bins"]);
    run::success(cargo, interrupt).await
}

async fn measure(
    args: &Args,
    server: &PrivatePostgres,
    folder: &Path,
    settings: &str,
    interrupt: &mut Interrupt,
) -> anyhow::Result<ExitStatus> {
    let mut bench = command(args);
    bench.arg("--programs").arg(programs()).arg("--logs").arg(folder);
    bench.arg("--psql").arg(psql(server)).args(["--postmaster", &server.pid().to_string(), "--settings", settings]);
    bench.env("FENCEPOST_BENCH_DATABASE_URL", server.url("postgres"));
    run::status(bench, interrupt).await
}

/// What went wrong the bench itself has said.
fn code(status: ExitStatus) -> ExitCode {
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn command(args: &Args) -> Command {
    let mut bench = service::command(&programs().join("bench"));
    bench.args(args.quick.then_some("--quick")).args(args.list.then_some("--list"));
    bench.args(args.scenarios.iter().flat_map(|name| ["--scenario", name]));
    if let Some(runs) = args.runs {
        bench.args(["--runs", &runs.to_string()]);
    }
    if let Some(file) = &args.json {
        bench.arg("--json").arg(file);
    }
    bench
}

fn programs() -> PathBuf {
    workspace::target().join("release")
}

/// `psql` beside the server's programs, else from PATH.
fn psql(server: &PrivatePostgres) -> PathBuf {
    let beside = server.programs().join("psql");
    if beside.is_file() { beside } else { PathBuf::from("psql") }
}

async fn settings() -> anyhow::Result<Vec<(String, String)>> {
    let mut settings = SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    if postgres::has_module(COUNTER).await? {
        settings.push(("shared_preload_libraries".to_owned(), COUNTER.to_owned()));
    }
    Ok(settings)
}

fn shown(settings: &[(String, String)]) -> String {
    let pairs: Vec<String> = settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("else stock but for locale=C, {}", pairs.join(", "))
}
