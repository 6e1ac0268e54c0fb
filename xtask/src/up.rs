//! `cargo xtask up`: the whole system, kept running.

use std::{process::ExitCode, time::Duration};

use crate::{interrupt::Interrupt, stack, stack::Stack};

/// The scheduler's usual ports, taken if they are free.
const PORTS: [u16; 2] = [7878, 9464];

/// Workers to start with.
const WORKERS: u32 = 2;

/// Between two looks at whether everything still runs.
const CHECK_PAUSE: Duration = Duration::from_millis(500);

/// Builds and starts everything, and stops it again at Ctrl-C.
pub async fn run(args: &stack::Args, interrupt: &mut Interrupt) -> anyhow::Result<ExitCode> {
    stack::build(args, interrupt).await?;
    let mut stack = Stack::start(args, "up", stack::ports(PORTS)?, WORKERS).await?;
    print(&stack);
    let watched = watch(&mut stack, interrupt).await;
    eprintln!("draining and stopping");
    stack.stop().await?;
    watched.map(|()| ExitCode::SUCCESS)
}

fn print(stack: &Stack) {
    println!("scheduler  {}  (gRPC, with reflection)", stack.url());
    println!("metrics    http://{}/metrics", stack.metrics());
    println!("database   {}", stack.psql_line());
    println!(
        "workers    {WORKERS}, for jobs of kind file.digest in the queue {}: the payload is a file's path",
        stack::QUEUE
    );
    println!("logs       {}/*.log", stack.logs().display());
    println!("Ctrl-C drains and stops it.");
}

async fn watch(stack: &mut Stack, interrupt: &mut Interrupt) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            () = interrupt.wait() => return Ok(()),
            () = tokio::time::sleep(CHECK_PAUSE) => stack.check()?,
        }
    }
}
