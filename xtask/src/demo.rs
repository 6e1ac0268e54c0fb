//! `cargo xtask demo`: real files through the whole system, a worker killed half-way, every result checked.

use std::{
    path::PathBuf,
    process::{ExitCode, Stdio},
};

use anyhow::{Context as _, bail, ensure};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, Command},
};

use crate::{
    interrupt::Interrupt,
    run, service, stack,
    stack::{Stack, StackArgs},
    workspace,
};

/// Workers to start with.
const WORKERS: u32 = 2;

/// The line of the crate `demo` that asks for the death of a worker.
const HALFWAY: &str = "halfway";

/// What `cargo xtask demo` is told.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    stack: StackArgs,
    /// The folder whose files are read; default: the sources of this workspace's dependencies in cargo's registry.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The most files to read, spread evenly over those found.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    limit: u32,
    /// Leaves the system running at the end, until Ctrl-C.
    #[arg(long)]
    keep: bool,
}

/// Runs the demonstration. An error if a file's effect is missing or wrong.
pub async fn run(args: &Args, interrupt: &mut Interrupt) -> anyhow::Result<ExitCode> {
    stack::build(&args.stack, interrupt).await?;
    eprintln!("starting PostgreSQL, one scheduler, one reaper and {WORKERS} workers");
    let mut stack = Stack::start(&args.stack, "demo", stack::ports([0, 0])?, WORKERS).await?;
    let performed = perform(args, &mut stack, interrupt).await;
    if performed.is_ok() && args.keep {
        println!("still running, until Ctrl-C:\n{}", stack.describe());
        interrupt.wait().await;
    }
    let logs = stack.logs().to_owned();
    let stopped = stack.stop().await;
    performed.with_context(|| format!("the demonstration failed (logs: {}/*.log)", logs.display()))?;
    stopped?;
    Ok(ExitCode::SUCCESS)
}

async fn perform(args: &Args, stack: &mut Stack, interrupt: &mut Interrupt) -> anyhow::Result<()> {
    let mut driver = command(args, stack).spawn().context("start the demo's producer")?;
    let performed = tokio::select! {
        performed = attend(&mut driver, stack) => performed,
        () = interrupt.wait() => Err(anyhow::anyhow!("interrupted")),
    };
    if performed.is_err() {
        run::stop(&mut driver).await?;
    }
    performed
}

fn command(args: &Args, stack: &Stack) -> Command {
    let mut command = service::command(&stack.program("demo"));
    command.args(["--scheduler", &stack.url(), "--metrics", &stack.metrics().to_string(), "--queue", stack::QUEUE]);
    command.args(["--limit", &args.limit.to_string()]);
    if let Some(dir) = &args.dir {
        command.arg("--dir").arg(std::path::absolute(dir).unwrap_or_else(|_| dir.clone()));
    }
    command.current_dir(workspace::root()).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    command
}

/// Passes the driver's output on, does to the workers what it asks for, and watches that everything runs.
async fn attend(driver: &mut Child, stack: &mut Stack) -> anyhow::Result<()> {
    let mut lines = BufReader::new(driver.stdout.take().context("read the producer's output")?).lines();
    loop {
        tokio::select! {
            line = lines.next_line() => match line.context("read the producer's output")? {
                Some(line) if line == HALFWAY => replace_worker(driver, stack).await?,
                Some(line) => println!("{line}"),
                None => break,
            },
            () = tokio::time::sleep(stack::CHECK_PAUSE) => stack.check()?,
        }
    }
    let status = driver.wait().await.context("wait for the producer")?;
    ensure!(status.success(), "not every file has its one effect, or the run was cut short");
    Ok(())
}

async fn replace_worker(driver: &mut Child, stack: &mut Stack) -> anyhow::Result<()> {
    let killed = stack.kill_worker().await?;
    let started = stack.start_worker()?;
    let Some(input) = &mut driver.stdin else {
        bail!("the producer's input is closed");
    };
    let line = format!("killed {killed} with SIGKILL, started {started}\n");
    input.write_all(line.as_bytes()).await.context("answer the producer")
}
