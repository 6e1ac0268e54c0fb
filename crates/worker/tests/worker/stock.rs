//! The stock worker as a process: exec handlers and signals.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use queue_proto::millis;
use queue_proto::v1::settlement::Outcome;
use queue_proto::v1::{self, Failed, Succeeded};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::fake::{Fake, PATIENCE, Session, grant, patiently};
use crate::setup::TTL;

/// The stock worker with these arguments, and the stream it opened.
pub async fn start(arguments: &[&str]) -> (Child, Session, Fake) {
    let mut fake = Fake::start();
    let worker = Command::new(env!("CARGO_BIN_EXE_worker"))
        .args(arguments)
        .args(["--scheduler", &fake.url, "--queue", "q", "--log-filter", "warn"])
        .env("FENCEPOST_TOKEN", "planted-secret")
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let session = fake.welcome(TTL).await;
    (worker, session, fake)
}

/// Runs one job to its end.
pub async fn outcome(session: &mut Session, grant: v1::Grant) -> Outcome {
    let job = grant.job_id;
    session.grant([grant]).await;
    session.applied_outcome(job).await
}

pub fn succeeded(outcome: Outcome) -> Succeeded {
    match outcome {
        Outcome::Succeeded(succeeded) => succeeded,
        other => panic!("it must succeed: {other:?}"),
    }
}

pub fn failed(outcome: Outcome) -> Failed {
    match outcome {
        Outcome::Failed(failed) => failed,
        other => panic!("it must fail: {other:?}"),
    }
}

pub fn signal(worker: &Child, signal: Signal) {
    kill_process(pid(worker), signal).unwrap();
}

pub fn pid(worker: &Child) -> Pid {
    Pid::from_raw(i32::try_from(worker.id().unwrap()).unwrap()).unwrap()
}

/// The process whose number a command wrote into this file, once it has.
pub async fn written_pid(file: &Path) -> Pid {
    let read = async {
        loop {
            if let Some(pid) = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()) {
                return Pid::from_raw(pid).unwrap();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    patiently("a process id", read).await
}

pub async fn gone(pid: Pid) {
    let wait = async {
        while test_kill_process(pid).is_ok() && !is_zombie(pid) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    patiently("a process to be gone", wait).await;
}

/// Without an init process that reaps them, orphans stay as zombies.
pub fn is_zombie(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    status.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_gives_payload_and_environment_and_takes_output_as_result_and_effect() {
    let script = r#"sh -c 'cat; echo; env | grep -E "^(FENCEPOST|TRACEPARENT)"'"#;
    let exec = format!("env={script}");
    let (worker, mut session, _fake) = start(&["--exec", &exec, "--effect", "env"]).await;
    let job = v1::Grant {
        payload: "the payload".into(),
        idempotency_key: Some("key 1".to_owned()),
        headers: [("x-tenant".to_owned(), "acme".to_owned())].into(),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        ..grant(1, "env")
    };
    let succeeded = succeeded(outcome(&mut session, job).await);
    assert_eq!(succeeded.result, succeeded.effect);
    let result = String::from_utf8(succeeded.result.unwrap().to_vec()).unwrap();
    let (payload, environment) = result.split_once('\n').unwrap();
    assert_eq!(payload, "the payload");
    let environment: HashMap<_, _> = environment.lines().filter_map(|line| line.split_once('=')).collect();
    let expected = HashMap::from([
        ("FENCEPOST_JOB_ID", "1"),
        ("FENCEPOST_FENCING_TOKEN", "10"),
        ("FENCEPOST_ATTEMPT", "1"),
        ("FENCEPOST_MAX_ATTEMPTS", "5"),
        ("FENCEPOST_QUEUE", "q"),
        ("FENCEPOST_KIND", "env"),
        ("FENCEPOST_KEY", "key 1"),
        ("FENCEPOST_HEADER_X_TENANT", "acme"),
        ("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ]);
    assert_eq!(environment, expected, "and above all no FENCEPOST_TOKEN");
    drop(worker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_status_decides_and_output_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    std::fs::copy("/bin/true", &program).unwrap();
    let (worker, mut session, _fake) = start(&[
        "--exec",
        "retry=sh -c 'echo first >&2; printf \"bad \\342\" >&2; exit 75'",
        "--exec",
        "other=false",
        "--exec",
        "dead=sh -c 'exit 65'",
        "--exec",
        "dead2=sh -c 'exit 100'",
        "--exec",
        "signal=sh -c 'kill -9 $$'",
        "--exec",
        "large=head -c 2000000 /dev/zero",
        "--exec",
        &format!("missing={}", program.display()),
        "--exec",
        "deaf=sh -c 'exit 0'",
        "--exec",
        "orphan=sh -c 'sleep 1000 & echo out'",
    ])
    .await;
    std::fs::remove_file(&program).unwrap();
    let cases = [
        ("retry", "exit_75", true),
        ("other", "exit_1", true),
        ("dead", "exit_65", false),
        ("dead2", "exit_100", false),
        ("signal", "signal", true),
        ("large", "result_too_large", false),
        ("missing", "exec_failed", true),
    ];
    for (job, (kind, code, retryable)) in (1..).zip(cases) {
        let failed = failed(outcome(&mut session, grant(job, kind)).await);
        assert_eq!((failed.code.as_str(), failed.retryable), (code, retryable), "{kind}");
        if kind == "retry" {
            assert_eq!(failed.message, "first\nbad \u{fffd}");
        }
        if kind == "missing" {
            assert!(failed.message.contains(program.to_str().unwrap()), "{}", failed.message);
        }
    }
    let deaf = v1::Grant { payload: vec![0; 1 << 20].into(), ..grant(20, "deaf") };
    assert_eq!(succeeded(outcome(&mut session, deaf).await).result, None, "a command need not read its input");
    let orphan = succeeded(outcome(&mut session, grant(21, "orphan")).await);
    assert_eq!(orphan.result.as_deref(), Some(&b"out\n"[..]), "what a command left behind does not hold it up");
    drop(worker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_whole_process_group_is_killed_on_a_lost_lease_and_on_a_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let exec = format!(
        "stubborn=sh -c 'trap \"\" TERM; sh -c \"trap \\\"\\\" TERM; echo \\$\\$ > {0}/$FENCEPOST_JOB_ID; while :; do sleep 1; done\"'",
        dir.path().display()
    );
    let (worker, mut session, _fake) = start(&["--exec", &exec]).await;
    session.grant([grant(1, "stubborn")]).await;
    let child = written_pid(&dir.path().join("1")).await;
    session.lose(1).await;
    gone(child).await;
    let timeout = Some(millis(Duration::from_millis(500)));
    session.grant([v1::Grant { timeout, ..grant(2, "stubborn") }]).await;
    let child = written_pid(&dir.path().join("2")).await;
    assert_eq!(failed(session.applied_outcome(2).await).code, "timeout");
    gone(child).await;
    drop(worker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_drains_and_exits_with_0() {
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let exec = format!(
        "wait=sh -c 'echo $$ > {0}/pid; while [ ! -e {0}/go ]; do sleep 0.05; done; echo done'",
        dir.path().display()
    );
    let (mut worker, mut session, _fake) = start(&["--exec", &exec]).await;
    session.grant([grant(1, "wait")]).await;
    written_pid(&dir.path().join("pid")).await;
    signal(&worker, Signal::TERM);
    session.draining().await;
    std::fs::write(go, "").unwrap();
    assert_eq!(succeeded(session.applied_outcome(1).await).result.as_deref(), Some(&b"done\n"[..]));
    session.bye().await;
    session.close();
    assert_eq!(patiently("the end", worker.wait()).await.unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_outlives_the_grace_is_killed_and_released() {
    let dir = tempfile::tempdir().unwrap();
    let exec = format!("long=sh -c 'echo $$ > {}/pid; sleep 1000'", dir.path().display());
    let (mut worker, mut session, _fake) = start(&["--exec", &exec, "--grace", "200ms"]).await;
    session.grant([grant(1, "long")]).await;
    let child = written_pid(&dir.path().join("pid")).await;
    signal(&worker, Signal::TERM);
    assert!(matches!(session.applied_outcome(1).await, Outcome::Released(_)));
    session.bye().await;
    session.close();
    assert_eq!(patiently("the end", worker.wait()).await.unwrap().code(), Some(0));
    gone(child).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_sigterm_ends_it_at_once_and_its_commands_too() {
    let dir = tempfile::tempdir().unwrap();
    let exec =
        format!("long=sh -c 'trap \"\" TERM; echo $$ > {}/pid; while :; do sleep 1; done'", dir.path().display());
    let (mut worker, mut session, _fake) = start(&["--exec", &exec]).await;
    session.grant([grant(1, "long")]).await;
    let child = written_pid(&dir.path().join("pid")).await;
    signal(&worker, Signal::TERM);
    session.draining().await;
    signal(&worker, Signal::TERM);
    assert!(matches!(session.settlement().await.outcome, Some(Outcome::Released(_))));
    session.bye().await;
    session.close();
    let status = tokio::time::timeout(PATIENCE, worker.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(143));
    gone(child).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_that_speaks_no_tls_is_told_with_what_to_check() {
    let fake = Fake::start();
    let mut worker = Command::new(env!("CARGO_BIN_EXE_worker"))
        .args(["--exec", "a=true", "--scheduler", &fake.url.replace("http://", "https://")])
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(worker.stderr.take().unwrap()).lines();
    let refused = async {
        loop {
            let line = lines.next_line().await.unwrap().expect("a line before the end");
            if line.contains("cannot open a stream") {
                return line;
            }
        }
    };
    let line = patiently("a line of the log", refused).await;
    assert!(line.contains("InvalidContentType; ") && line.contains("check whether its address is http://"), "{line}");
}
