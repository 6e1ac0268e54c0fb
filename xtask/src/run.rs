//! Commands that a task runs to their end.

use std::{ffi::OsString, process::ExitStatus, time::Duration};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::{interrupt::Interrupt, workspace};

/// How long a command has to stop after an interrupt before it is killed.
const STOP_BOUND: Duration = Duration::from_secs(15);

/// The cargo that runs this task, in the root of the repository.
pub fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.current_dir(workspace::root());
    command
}

/// Runs a command to its end. An interrupt ends it too, and is an error.
pub async fn status(mut command: Command, interrupt: &mut Interrupt) -> anyhow::Result<ExitStatus> {
    let name = command.as_std().get_program().display().to_string();
    let mut child = command.kill_on_drop(true).spawn().with_context(|| format!("start {name}"))?;
    tokio::select! {
        status = child.wait() => status.with_context(|| format!("wait for {name}")),
        () = interrupt.wait() => {
            stop(&mut child).await?;
            bail!("interrupted")
        }
    }
}

/// Runs a command that has to succeed.
pub async fn success(command: Command, interrupt: &mut Interrupt) -> anyhow::Result<()> {
    let line = shown(&command);
    let status = status(command, interrupt).await?;
    ensure!(status.success(), "`{line}` ended with {status}");
    Ok(())
}

/// Waits for the child, which a Ctrl-C has reached too; kills it when that takes too long.
pub async fn stop(child: &mut Child) -> anyhow::Result<()> {
    signal(child, Signal::TERM)?;
    if tokio::time::timeout(STOP_BOUND, child.wait()).await.is_err() {
        child.kill().await.context("kill a command")?;
    }
    Ok(())
}

/// Sends a signal to a child that may have ended already.
pub fn signal(child: &Child, signal: Signal) -> anyhow::Result<()> {
    // The id is there until the child was waited for, so that it can be nobody else's.
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    pid.map_or(Ok(()), |pid| kill_process(pid, signal)).context("signal a process")
}

/// The command as a person would type it, without its environment.
fn shown(command: &Command) -> String {
    let command = command.as_std();
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Whether PATH has this program.
pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
