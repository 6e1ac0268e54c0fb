//! The process groups of commands that run, and the guard that ends them should this process be killed.

use std::collections::BTreeSet;
use std::io::{self, PipeWriter, Write};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use crate::environment::without_own_variables;
use crate::guard::{READY, SUBCOMMAND};

/// A guard is ready within milliseconds; one that is not by then never will be.
const START_BOUND: Duration = Duration::from_secs(10);
/// Between the end of a guard and the next one, so that guards that end at once are not started in a spin.
const REPLACE_PAUSE: Duration = Duration::from_millis(100);

/// The groups that run. The guard is told of each: through a pipe that the kernel closes however this process ends.
///
/// A parent-death signal would need code between fork and exec, which is unsafe, and would end one process and not its group.
/// A worker that is killed in the microseconds between the start of a command and the word of it leaves that command behind.
#[derive(Debug, Default)]
pub struct Groups(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    running: BTreeSet<i32>,
    guard: Option<Pipe>,
}

/// The guard's standard input, and its process id.
#[derive(Debug)]
struct Pipe {
    to: PipeWriter,
    id: Option<Pid>,
}

impl Groups {
    /// Tells the guard of a group that began.
    pub fn add(&self, group: Pid) {
        let mut state = self.lock();
        state.running.insert(group.as_raw_pid());
        state.tell('+', group);
    }

    /// Tells the guard that a group is over. To be called while its number cannot yet be another's.
    pub fn remove(&self, group: Pid) {
        let mut state = self.lock();
        state.running.remove(&group.as_raw_pid());
        state.tell('-', group);
    }

    /// Starts a guard that knows what runs.
    pub async fn start_guard(&self) -> anyhow::Result<Child> {
        let mut guard = self.spawn_guard().context("start the guard of the commands")?;
        let ready =
            async { guard.stdout.take().context("it has no standard output")?.read_u8().await.context("it ended") };
        let said = tokio::time::timeout(START_BOUND, ready).await.context("it is not ready in time");
        let said = said.flatten().context("wait for the guard of the commands")?;
        ensure!(said == READY, "the guard of the commands speaks another language");
        Ok(guard)
    }

    /// Replaces the guard whenever it ends. Ends only if it cannot.
    pub async fn keep_guard(&self, mut guard: Child) -> anyhow::Error {
        loop {
            let status = guard.wait().await.map_or_else(|error| error.to_string(), |status| status.to_string());
            tracing::warn!(status, "the guard of the commands ended: starting another");
            tokio::time::sleep(REPLACE_PAUSE).await;
            guard = match self.start_guard().await {
                Ok(guard) => guard,
                Err(error) => return error,
            };
        }
    }

    /// Within one lock, so that what begins or ends meanwhile is told to the new guard.
    fn spawn_guard(&self) -> io::Result<Child> {
        let mut state = self.lock();
        let (from, to) = io::pipe()?;
        // A guard that does not read must not stop the worker.
        rustix::io::ioctl_fionbio(&to, true)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(SUBCOMMAND).args(state.running.iter().map(i32::to_string));
        without_own_variables(&mut command);
        // A group of its own: what is sent to the worker's is not for the guard.
        command.process_group(0).current_dir("/").stdin(from).stdout(Stdio::piped());
        let guard = command.spawn()?;
        state.guard = Some(Pipe { to, id: guard.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) });
        Ok(guard)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A guard that has ended is not told: the next one is started with all that runs.
    fn tell(&mut self, sign: char, group: Pid) {
        let Some(guard) = &mut self.guard else { return };
        let line = format!("{sign}{}\n", group.as_raw_pid());
        // So short a line is written as a whole or not at all.
        let result = guard.to.write_all(line.as_bytes());
        if result.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            && let Some(id) = guard.id
        {
            // It lives, as its pipe does, and has not read for thousands of lines. Its end is seen and it is replaced.
            let _ = kill_process(id, Signal::KILL);
        }
    }
}
