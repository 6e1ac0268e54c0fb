//! Real processes under test, of which nothing is left behind.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use private_postgres::Guard;
use rustix::process::{Pid, Signal, kill_process};

use crate::eventually;
use crate::eventually::holds_within;

/// Marks every descendant, so that those are found too that moved to process groups of their own.
///
/// Not a name of Fencepost's: workers keep those from their commands.
const MARK: &str = "TESTBED_PROCESS";
/// Lines of a log that are kept: the newest.
const LOG_LINES: usize = 20_000;
/// Rounds of killing what was marked: a process may fork while it is looked for.
const SWEEPS: usize = 20;

/// Processes of one test. When it is dropped they are killed, with all they have started.
#[derive(Debug)]
pub struct Processes {
    mark: String,
}

/// A process under test. Killed when dropped, and by its guard should this process be killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: Log,
    captures: Vec<JoinHandle<()>>,
    // Dismissed once there is nothing left to guard.
    _guard: Guard,
}

type Log = Arc<Mutex<Vec<String>>>;

impl Default for Processes {
    fn default() -> Self {
        Self::new()
    }
}

impl Processes {
    /// None yet.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { mark: format!("{MARK}={}-{number}", std::process::id()) }
    }

    /// Starts a binary of the workspace, such as `scheduler` or `examples/digest`, from the folder that the test was built in.
    ///
    /// Of the environment it gets `PATH`, `HOME` and `env`.
    pub fn start<A: AsRef<OsStr>>(&self, binary: &str, args: &[A], env: &[(&str, &str)]) -> Process {
        let path = built(binary);
        let package = binary.rsplit('/').next().unwrap_or(binary);
        assert!(path.exists(), "{} is not built: run `cargo build -p {package}` first", path.display());
        let mut command = Command::new(path);
        command.args(args).env_clear();
        for name in ["PATH", "HOME", "LLVM_PROFILE_FILE"] {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        command.envs(env.iter().copied());
        self.spawn(binary, command)
    }

    /// Starts any program, such as a script that is under test.
    pub fn spawn(&self, name: &str, mut command: Command) -> Process {
        let (key, value) = self.mark.split_once('=').unwrap_or_default();
        command.env(key, value).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("start {name}: {error}"));
        let log = Log::default();
        let stdout = child.stdout.take().map(|stdout| capture(stdout, log.clone()));
        let stderr = child.stderr.take().map(|stderr| capture(stderr, log.clone()));
        let guard = Guard::over(child.id(), "KILL", None).unwrap_or_else(|error| panic!("guard {name}: {error}"));
        let captures = stdout.into_iter().chain(stderr).collect();
        Process { name: name.to_owned(), child, log, captures, _guard: guard }
    }

    /// Ids of the processes that live now: those started here and their descendants.
    pub fn living(&self) -> Vec<u32> {
        let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
        let ids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        ids.filter(|&id| self.is_marked(id)).collect()
    }

    fn is_marked(&self, id: u32) -> bool {
        // A zombie's is empty, so what is only not yet reaped does not count.
        let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|entry| entry == self.mark.as_bytes())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for _ in 0..SWEEPS {
            let living = self.living();
            if living.is_empty() {
                return;
            }
            for id in living {
                send(id, Signal::KILL);
            }
            thread::yield_now();
        }
    }
}

impl Process {
    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL: what a crash looks like. Waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap_or_else(|error| panic!("kill {}: {error}", self.name));
        self.child.wait().unwrap_or_else(|error| panic!("wait for {}: {error}", self.name));
    }

    /// SIGTERM: asks it to stop.
    pub fn terminate(&self) {
        send(self.id(), Signal::TERM);
    }

    /// SIGINT: what Ctrl-C sends.
    pub fn interrupt(&self) {
        send(self.id(), Signal::INT);
    }

    /// SIGSTOP: it falls silent without being gone.
    pub fn freeze(&self) {
        send(self.id(), Signal::STOP);
    }

    /// SIGCONT: it goes on as if no time had passed.
    pub fn thaw(&self) {
        send(self.id(), Signal::CONT);
    }

    /// Whether it runs still.
    pub fn is_running(&mut self) -> bool {
        self.status().is_none()
    }

    /// Waits for its end.
    pub async fn exit(&mut self, within: Duration) -> ExitStatus {
        let what = format!("{} ends", self.name);
        eventually(within, &what, async || self.status().is_some()).await;
        self.status().expect("it has just been seen to end")
    }

    /// What it has written so far, standard output and error line by line.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until a line of its log contains `text`. Panics with the log if none does in time, or if it ends before.
    pub async fn logged(&mut self, text: &str, within: Duration) {
        let has = |log: &[String]| log.iter().any(|line| line.contains(text));
        let ended = holds_within(within, async || has(&self.log()) || self.is_silent()).await;
        let log = self.log();
        let how = if ended { "ended and did not" } else { "did not in time" };
        assert!(has(&log), "{} {how} write {text:?}:\n{}", self.name, log.join("\n"));
    }

    /// It has ended and all it had written has been read.
    fn is_silent(&mut self) -> bool {
        self.status().is_some() && self.captures.iter().all(JoinHandle::is_finished)
    }

    fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap_or_else(|error| panic!("look at {}: {error}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- {} wrote:\n{}", self.name, self.log().join("\n"));
        }
    }
}

/// A binary of the workspace is beside the folder of test binaries, whatever the profile or target is called.
fn built(binary: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.parent().expect("it is in a folder");
    let folder = if folder.ends_with("deps") { folder.parent().expect("of a profile") } else { folder };
    folder.join(binary)
}

fn capture(output: impl Read + Send + 'static, log: Log) -> JoinHandle<()> {
    thread::spawn(move || {
        // Bytes, not text: a line that is no UTF-8 must not end the capture, or the process would block on a full pipe.
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            if log.len() >= LOG_LINES {
                log.drain(..LOG_LINES / 2);
            }
            log.push(String::from_utf8_lossy(&line).into_owned());
        }
    })
}

/// A process that has ended is fine.
fn send(id: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
