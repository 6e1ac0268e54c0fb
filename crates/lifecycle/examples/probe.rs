//! The smallest service, and the ways in which one can misbehave. Run by the tests.

use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::{Parser, ValueEnum};
use lifecycle::{ListenArgs, Shutdown, Tasks};
use telemetry::TelemetryArgs;

/// The smallest service.
#[derive(Parser)]
struct Args {
    #[arg(value_enum)]
    mode: Mode,
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// Ends when it is told to.
    Drain,
    /// Drains until it is told to stop at once.
    Slow,
    /// Blocks every thread of the runtime and hears nothing.
    Hang,
    /// Fails with causes.
    Fail,
    /// An internal task panics.
    Panic,
    /// Prints everything that it was given.
    Tell,
}

fn main() -> ExitCode {
    let args = Args::parse();
    lifecycle::run("probe", args.telemetry.clone(), |shutdown| serve(args, shutdown))
}

async fn serve(args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    telemetry::readiness().ready();
    match args.mode {
        Mode::Drain => shutdown.soft().cancelled().await,
        Mode::Slow => shutdown.hard().cancelled().await,
        Mode::Hang => hang(),
        Mode::Fail => return Err(anyhow!("connection refused")).context("connect to the database"),
        Mode::Panic => return panicking(shutdown).await,
        Mode::Tell => {
            args.listen.validate()?;
            let auth = args.listen.auth()?;
            tracing::info!(listen = ?args.listen, token = ?args.listen.token()?, ?auth, "configured");
        }
    }
    Ok(())
}

fn hang() {
    for _ in 0..64 {
        tokio::spawn(async { std::thread::park() });
    }
    loop {
        std::thread::park();
    }
}

async fn panicking(shutdown: Shutdown) -> anyhow::Result<()> {
    let mut tasks = Tasks::new(shutdown.clone());
    tasks.spawn("steady", async move {
        shutdown.soft().cancelled().await;
        Ok(())
    });
    tasks.spawn("buggy", async { panic!("a bug") });
    tasks.join().await
}
