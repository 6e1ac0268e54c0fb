//! `cargo xtask up`: the whole system, kept running.

use std::process::ExitCode;

use crate::{
    interrupt::Interrupt,
    stack,
    stack::{Stack, StackArgs},
};

/// The scheduler's usual ports, taken if they are free.
const PORTS: [u16; 2] = [7878, 9464];

/// Workers to start with.
const WORKERS: u32 = 2;

/// Builds and starts everything, and stops it again at Ctrl-C.
pub async fn run(args: &StackArgs, interrupt: &mut Interrupt) -> anyhow::Result<ExitCode> {
    stack::build(args, interrupt).await?;
    let mut stack = Stack::start(args, "up", stack::ports(PORTS)?, WORKERS).await?;
    println!("{}", stack.describe());
    println!(
        "workers    {WORKERS}, for jobs of kind file.digest in the queue {}: the payload is a file's path",
        stack::QUEUE
    );
    println!("Ctrl-C drains and stops it.");
    let watched = watch(&mut stack, interrupt).await;
    eprintln!("draining and stopping");
    stack.stop().await?;
    watched.map(|()| ExitCode::SUCCESS)
}

async fn watch(stack: &mut Stack, interrupt: &mut Interrupt) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            () = interrupt.wait() => return Ok(()),
            () = tokio::time::sleep(stack::CHECK_PAUSE) => stack.check()?,
        }
    }
}
