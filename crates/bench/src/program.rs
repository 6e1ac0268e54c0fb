//! One process of the system, started and watched.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};
use private_postgres::Guard;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, ChildStdout, Command};

/// More than any program's own bound on its drain.
const STOP_BOUND: Duration = Duration::from_secs(40);

/// Lines of a log that an error shows.
const LOG_LINES: usize = 15;

/// A running program; killed on drop, and by its guard should this process be killed.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    child: Child,
    pid: u32,
    log: PathBuf,
    // After the child: it is dismissed when there is nothing left to guard.
    _guard: Guard,
}

impl Program {
    /// Starts a program whose log is `NAME.log` in the folder of logs, and whose output is for this process.
    pub(crate) fn start(name: &str, mut command: Command, logs: &Path) -> anyhow::Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file).kill_on_drop(true);
        // A group of its own: Ctrl-C is for the bench, which ends its programs.
        command.process_group(0);
        let shown = command.as_std().get_program().display().to_string();
        let child = command.spawn().with_context(|| format!("start {shown}"))?;
        let pid = child.id().with_context(|| format!("{shown} ended at once"))?;
        Ok(Self { name: name.to_owned(), child, pid, log, _guard: Guard::over(pid, "TERM", None)? })
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// What it writes; once.
    pub(crate) fn output(&mut self) -> anyhow::Result<ChildStdout> {
        self.child.stdout.take().with_context(|| format!("read from {}", self.name))
    }

    /// An error if it has ended, with the last lines of its log.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait().with_context(|| format!("look after {}", self.name))? {
            Some(status) => Err(self.ended(status)),
            None => Ok(()),
        }
    }

    /// Ends it as a crash would.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.with_context(|| format!("kill {}", self.name))
    }

    /// Lets it drain and end; an error if it ends badly or not in time.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        // The id is there until the child was waited for, so that it can be nobody else's.
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            kill_process(pid, Signal::TERM).with_context(|| format!("stop {}", self.name))?;
        }
        match tokio::time::timeout(STOP_BOUND, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(self.ended(status)),
            Ok(Err(error)) => Err(error).with_context(|| format!("wait for {}", self.name)),
            Err(_) => bail!("{} did not stop within {STOP_BOUND:?}; see {}", self.name, self.log.display()),
        }
    }

    fn ended(&self, status: ExitStatus) -> anyhow::Error {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
        anyhow::anyhow!("{} ended with {status}; the end of {}:\n{last}", self.name, self.log.display())
    }
}

/// A command without the `FENCEPOST_*` settings of the user's shell, which are meant for other installations. Those of clients
/// of PostgreSQL are gone already: `cargo xtask bench` keeps them from this process.
pub(crate) fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"FENCEPOST_")) {
        command.env_remove(name);
    }
    command
}
