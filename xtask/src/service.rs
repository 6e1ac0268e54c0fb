//! One program of the system, started and watched by a task.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};
use private_postgres::Guard;
use rustix::process::Signal;
use tokio::process::{Child, Command};

use crate::run;

/// More than a worker's default grace for its running jobs.
const STOP_BOUND: Duration = Duration::from_secs(40);

/// Lines of a log that an error shows.
const LOG_LINES: usize = 15;

/// A running program; killed on drop, and by its guard should this task be killed.
#[derive(Debug)]
pub struct Service {
    name: String,
    child: Child,
    log: PathBuf,
    // After the child: it is dismissed when there is nothing left to guard.
    _guard: Option<Guard>,
}

impl Service {
    /// Starts a program that writes to `NAME.log` in the folder of logs.
    pub fn start(name: &str, mut command: Command, logs: &Path) -> anyhow::Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).kill_on_drop(true);
        // A group of its own: Ctrl-C is for the task, which stops its programs in order.
        command.process_group(0);
        let program = command.as_std().get_program().display().to_string();
        let child = command.spawn().with_context(|| format!("start {program}"))?;
        let guard = child.id().map(|pid| Guard::over(pid, "TERM", None)).transpose()?;
        Ok(Self { name: name.to_owned(), child, log, _guard: guard })
    }

    /// What it was started as.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// An error if the program has ended, with the last lines of its log.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait().with_context(|| format!("look after {}", self.name))? {
            Some(status) => Err(self.ended(status)),
            None => Ok(()),
        }
    }

    /// Kills the program as a crash would: no drain, no goodbye.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.with_context(|| format!("kill {}", self.name))
    }

    /// Lets the program drain and end; kills it when that takes too long, and says so.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        run::signal(&self.child, Signal::TERM)?;
        match tokio::time::timeout(STOP_BOUND, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(self.ended(status)),
            Ok(Err(error)) => Err(error).with_context(|| format!("wait for {}", self.name)),
            Err(_) => {
                self.kill().await?;
                bail!("{} did not stop within {STOP_BOUND:?} and was killed; see {}", self.name, self.log.display())
            }
        }
    }

    fn ended(&self, status: ExitStatus) -> anyhow::Error {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
        anyhow::anyhow!("{} ended with {status}; the end of {}:\n{last}", self.name, self.log.display())
    }
}

/// A command without the `FENCEPOST_*` settings and databases of the user's shell, which are meant for other installations.
/// What is logged may be chosen.
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let bytes = name.as_encoded_bytes();
        if bytes.starts_with(b"FENCEPOST_") && bytes != b"FENCEPOST_LOG" {
            command.env_remove(name);
        }
    }
    private_postgres::forget_client_settings(command.as_std_mut());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn a_program_that_ends_is_noticed_with_its_last_words() -> anyhow::Result<()> {
        let logs = tempfile::tempdir()?;
        let mut service = Service::start("worker-1", shell("echo no scheduler >&2; exit 3"), logs.path())?;
        service.child.wait().await?;
        let message = service.check().err().context("the end was not noticed")?.to_string();
        assert!(
            message.contains("worker-1 ended with exit status: 3") && message.contains("no scheduler"),
            "{message}"
        );
        Ok(())
    }

    #[tokio::test]
    async fn stop_asks_before_it_kills() -> anyhow::Result<()> {
        let logs = tempfile::tempdir()?;
        let script = "trap 'echo drained; exit 0' TERM; echo up; while :; do sleep 0.01; done";
        let mut service = Service::start("worker-1", shell(script), logs.path())?;
        let log = service.log.clone();
        while !fs::read_to_string(&log)?.contains("up") {
            service.check()?;
            tokio::task::yield_now().await;
        }
        service.stop().await?;
        assert_eq!(fs::read_to_string(&log)?, "up\ndrained\n");
        Ok(())
    }

    #[tokio::test]
    async fn kill_is_not_an_orderly_end() -> anyhow::Result<()> {
        let logs = tempfile::tempdir()?;
        let mut service = Service::start("worker-1", shell("sleep 60"), logs.path())?;
        service.kill().await?;
        assert!(service.check().is_err());
        Ok(())
    }
}
