//! Signals, and how a process ends.

use std::time::Duration;

use lifecycle::HARD_STOP_BOUND;
use rustix::process::Signal;
use tokio::time::Instant;

use crate::child::Probe;

/// Scheduling and process exit on a busy machine.
const SLACK: Duration = Duration::from_secs(2);

#[tokio::test]
async fn the_first_signal_drains_and_exits_with_success() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut probe = Probe::start(&["drain"], &[]);
        probe.line("starting probe").await;
        probe.signal(signal);
        let line = probe.line("draining").await;
        assert!(line["message"].as_str().unwrap().contains("a second signal stops at once"), "{line}");
        let (status, _) = probe.end().await;
        assert_eq!(status.code(), Some(0));
    }
}

#[tokio::test]
async fn the_second_signal_stops_at_once_with_the_code_of_that_signal() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut probe = Probe::start(&["slow"], &[]);
        probe.line("starting probe").await;
        probe.signal(Signal::TERM);
        probe.line("draining").await;
        probe.signal(signal);
        let started = Instant::now();
        let (status, _) = probe.end().await;
        assert_eq!(status.code(), Some(code));
        assert!(started.elapsed() < HARD_STOP_BOUND, "main ended by itself, so nothing had to be waited for");
    }
}

#[tokio::test]
async fn a_main_that_blocks_every_thread_is_stopped_in_bounded_time() {
    let mut probe = Probe::start(&["hang"], &[]);
    probe.line("starting probe").await;
    probe.signal(Signal::TERM);
    probe.line("draining").await;
    let started = Instant::now();
    probe.signal(Signal::TERM);
    let (status, _) = probe.end().await;
    assert_eq!(status.code(), Some(143));
    assert!(started.elapsed() < HARD_STOP_BOUND + SLACK, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_hangup_is_logged_and_ignored() {
    let mut probe = Probe::start(&["drain"], &[]);
    probe.line("starting probe").await;
    probe.signal(Signal::HUP);
    assert_eq!(probe.line("ignoring the signal").await["signal"], "SIGHUP");
    probe.signal(Signal::TERM);
    assert_eq!(probe.end().await.0.code(), Some(0));
}

#[tokio::test]
async fn a_failure_is_one_error_line_with_its_causes_and_exits_with_one() {
    let (status, log) = Probe::start(&["fail"], &[]).end().await;
    assert_eq!(status.code(), Some(1));
    let errors: Vec<_> = log.iter().filter(|line| line.contains("ERROR")).collect();
    assert_eq!(errors.len(), 1, "{log:#?}");
    assert!(errors[0].contains("connect to the database: connection refused"), "{}", errors[0]);
}

#[tokio::test]
async fn a_panicked_internal_task_fails_the_process() {
    let (status, log) = Probe::start(&["panic"], &[]).end().await;
    assert_eq!(status.code(), Some(1));
    assert!(log.iter().any(|line| line.contains("task buggy: panicked")), "{log:#?}");
    assert!(log.iter().any(|line| line.contains("panic.location") && line.contains("a bug")), "{log:#?}");
    for line in log {
        serde_json::from_str::<serde_json::Value>(&line).expect("every line is JSON, panics too");
    }
}

#[tokio::test]
async fn a_malformed_log_filter_is_one_clear_line() {
    let (status, log) = Probe::start(&["drain", "--log-filter", "probe=loud"], &[]).end().await;
    assert_eq!(status.code(), Some(1));
    assert_eq!(log.len(), 1, "{log:#?}");
    assert!(log[0].starts_with("probe: cannot start: parse --log-filter `probe=loud`"), "{}", log[0]);
}
