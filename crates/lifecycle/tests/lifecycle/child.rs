//! The probe as a process.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;

/// Far more than anything takes; a test that reaches it has failed.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Probe {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
    pub log: Vec<String>,
}

impl Probe {
    pub fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut child = Command::new(binary())
            .args(arguments)
            .env_remove("FENCEPOST_TOKEN")
            .env_remove("OTEL_EXPORTER_OTLP_ENDPOINT")
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the probe starts: `cargo test -p lifecycle` builds it");
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, lines, log: Vec::new() }
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().unwrap().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for a log line with this text and returns it.
    pub async fn line(&mut self, text: &str) -> Value {
        loop {
            let line = timeout(PATIENCE, self.lines.next_line()).await.expect("a line in time").unwrap();
            let Some(line) = line else { panic!("no line with {text:?} in {:#?}", self.log) };
            self.log.push(line.clone());
            if line.contains(text) {
                return serde_json::from_str(&line).expect("a JSON line");
            }
        }
    }

    /// Waits for the end; returns the exit status, all lines, and after them what went to standard output.
    pub async fn end(mut self) -> (ExitStatus, Vec<String>) {
        while let Some(line) = timeout(PATIENCE, self.lines.next_line()).await.expect("an end in time").unwrap() {
            self.log.push(line);
        }
        let mut output = String::new();
        let mut stdout = self.child.stdout.take().unwrap();
        timeout(PATIENCE, stdout.read_to_string(&mut output)).await.expect("an end in time").unwrap();
        self.log.extend(output.lines().map(str::to_owned));
        let status = timeout(PATIENCE, self.child.wait()).await.expect("an end in time").unwrap();
        (status, self.log)
    }
}

/// Examples lie beside the directory of the test's own binary.
fn binary() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.ancestors().nth(2).unwrap().join("examples").join("probe")
}
