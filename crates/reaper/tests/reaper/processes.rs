//! The binary.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;
use tonic::Code;

use crate::fake::{Fake, Storage};

const PATIENCE: Duration = Duration::from_secs(20);
const PLANTED: &str = "planted-secret-7f3a";

struct Reaper(Child);

impl Reaper {
    fn start(schedulers: &str, arguments: &[&str]) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_reaper"))
            .args(["--scheduler", schedulers, "--log-format", "json"])
            .args(arguments)
            .env("FENCEPOST_TOKEN", PLANTED)
            .env("FENCEPOST_REAPER_PERIOD", "50ms")
            .env_remove("OTEL_EXPORTER_OTLP_ENDPOINT")
            .stderr(Stdio::piped())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self(child)
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.0.id().unwrap().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// The exit status, and the log with the planted token looked for.
    async fn end(self) -> (ExitStatus, Vec<Value>) {
        let output = timeout(PATIENCE, self.0.wait_with_output()).await.expect("an end in time").unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!text.contains(PLANTED), "the token is in the log");
        (output.status, text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }

    async fn terminate(self) -> (ExitStatus, Vec<Value>) {
        self.signal(Signal::TERM);
        self.end().await
    }
}

fn lines<'a>(log: &'a [Value], message: &str) -> Vec<&'a Value> {
    log.iter().filter(|line| line["message"].as_str().is_some_and(|text| text.contains(message))).collect()
}

#[tokio::test]
async fn once_does_one_pass_releases_and_exits_with_success() {
    let fake = Fake::start(Storage { sessions: 1, leases: 3, ..Storage::default() }).await;
    let (status, log) = Reaper::start(&fake.address, &["--once"]).end().await;
    assert_eq!(status.code(), Some(0), "{log:#?}");
    assert_eq!(fake.calls(), ["acquire", "expire", "reap", "tidy", "audit", "release"]);
    let line = lines(&log, "pass done")[0];
    assert_eq!((&line["expired"], &line["reaped"], &line["lag_ms"]), (&1.into(), &3.into(), &2_500.into()));
}

#[tokio::test]
async fn once_with_violations_fails_and_logs_each_as_an_error() {
    let violations = vec!["token 4 twice".to_owned(), "lease without session".to_owned()];
    let fake = Fake::start(Storage { violations, ..Storage::default() }).await;
    let (status, log) = Reaper::start(&fake.address, &["--once"]).end().await;
    assert_eq!(status.code(), Some(1));
    let errors = lines(&log, "an invariant of the storage is violated");
    assert_eq!(errors.len(), 2);
    assert!(errors.iter().all(|line| line["level"] == "ERROR"));
    assert_eq!(errors[0]["violation"], "token 4 twice");
}

#[tokio::test]
async fn a_drain_gives_the_maintenance_lease_back() {
    let fake = Fake::start(Storage::default()).await;
    let reaper = Reaper::start(&fake.address, &[]);
    fake.until(|storage| storage.calls.iter().filter(|call| **call == "reap").count() >= 2).await;
    let (status, log) = reaper.terminate().await;
    assert_eq!(status.code(), Some(0));
    assert!(fake.storage().held.is_none());
    assert_eq!(lines(&log, "gave the maintenance lease back").len(), 1);
    assert_eq!(lines(&log, "acting").len(), 1, "the role is told once: {log:#?}");
}

#[tokio::test]
async fn the_second_reaper_takes_over_when_the_first_drains() {
    let fake = Fake::start(Storage::default()).await;
    let first = Reaper::start(&fake.address, &["--name", "first"]);
    fake.until(|storage| storage.held.is_some()).await;
    let second = Reaper::start(&fake.address, &["--name", "second"]);
    fake.until(|storage| storage.authorizations.len() > 20).await;
    assert_eq!(fake.storage().held.as_ref().unwrap().1, "first");
    assert_eq!(first.terminate().await.0.code(), Some(0));
    fake.until(|storage| storage.held.as_ref().is_some_and(|held| held.1 == "second")).await;
    let (_, log) = second.terminate().await;
    assert!(lines(&log, "acting").len() == 1, "{log:#?}");
}

#[tokio::test]
async fn a_failing_scheduler_is_left_for_the_next_and_told_once_a_second() {
    let broken = Fake::start(Storage { failing: [("acquire", Code::Internal)].into(), ..Storage::default() }).await;
    let well = Fake::start(Storage::default()).await;
    let reaper = Reaper::start(&format!("{},{}", broken.address, well.address), &[]);
    well.until(|storage| storage.calls.contains(&"audit")).await;
    assert_eq!(broken.storage().calls.len(), 1);
    let (status, log) = reaper.terminate().await;
    assert_eq!(status.code(), Some(0));
    let warnings = lines(&log, "pass failed");
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0]["level"], "WARN");
}

#[tokio::test]
async fn passes_that_keep_failing_log_one_line_a_second_at_most() {
    let fake = Fake::start(Storage { failing: [("acquire", Code::Internal)].into(), ..Storage::default() }).await;
    let started = tokio::time::Instant::now();
    let reaper = Reaper::start(&fake.address, &[]);
    fake.until(|storage| storage.calls.len() >= 15).await;
    let (_, log) = reaper.terminate().await;
    let seconds = usize::try_from(started.elapsed().as_secs()).unwrap();
    let warnings = lines(&log, "pass failed").len();
    assert!((1..=seconds + 1).contains(&warnings), "{warnings} lines in {seconds} s");
}

#[tokio::test]
async fn readiness_and_metrics_follow_the_passes() {
    let fake = Fake::start(Storage { sessions: 1, leases: 3, ..Storage::default() }).await;
    let port = free_port();
    let reaper = Reaper::start(&fake.address, &["--metrics-listen", &port.to_string(), "--period", "1m"]);
    fake.until(|storage| storage.calls.contains(&"audit")).await;
    let address = format!("127.0.0.1:{port}");
    until(&address, "/readyz", "HTTP/1.1 200").await;
    let metrics = get(&address, "/metrics").await;
    for sample in [
        "fencepost_reaper_sessions_expired_total 1",
        "fencepost_reaper_leases_reaped_total 3",
        "fencepost_reaper_passes_total{outcome=\"acted\"} 1",
        "fencepost_reaper_standby 0",
        "fencepost_reaper_violations 0",
        "fencepost_reaper_lag_seconds_bucket{le=\"2.5\"} 1",
        "fencepost_reaper_last_lag_seconds 2.5",
        "fencepost_reaper_pass_duration_seconds_count 1",
    ] {
        assert!(metrics.contains(sample), "{sample} in {metrics}");
    }
    assert_eq!(reaper.terminate().await.0.code(), Some(0));
}

#[tokio::test]
async fn a_reaper_without_a_successful_pass_is_alive_but_not_ready() {
    let fake = Fake::start(Storage { failing: [("acquire", Code::Internal)].into(), ..Storage::default() }).await;
    let port = free_port();
    let reaper = Reaper::start(&fake.address, &["--metrics-listen", &port.to_string()]);
    fake.until(|storage| storage.calls.len() >= 3).await;
    let address = format!("127.0.0.1:{port}");
    assert!(get(&address, "/readyz").await.starts_with("HTTP/1.1 503"));
    assert!(get(&address, "/healthz").await.starts_with("HTTP/1.1 200"));
    reaper.terminate().await;
}

#[tokio::test]
async fn help_shows_examples_and_no_secret() {
    let output = Command::new(env!("CARGO_BIN_EXE_reaper"))
        .arg("--help")
        .env("FENCEPOST_TOKEN", PLANTED)
        .output()
        .await
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("Takes back what was abandoned") && text.contains("Examples:"), "{text}");
    assert!(!text.contains(PLANTED));
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

async fn until(address: &str, path: &str, start: &str) {
    let wait = async {
        while !get(address, path).await.starts_with(start) {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, wait).await.expect("the answer in time");
}

async fn get(address: &str, path: &str) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    timeout(PATIENCE, exchange).await.expect("an answer in time")
}
