//! The examples, against the programs.

use std::process::{Command, Output};

use client::v1::JobState;
use testbed::{db_test, free_address};

use crate::programs::program;
use crate::stage::{Stage, job};
use crate::tools::{example_tools, ran, root};

/// Runs the Python example, and returns its exit status, standard output and standard error.
async fn python(address: &str, words: &[&str]) -> (Option<i32>, String, String) {
    let mut python = Command::new(example_tools().expect("the tools of the examples are installed").join("python"));
    python.arg(root().join("examples/python/enqueue.py")).args(["--scheduler", address]).args(words);
    python.env_remove("FENCEPOST_TOKEN");
    let Output { status, stdout, stderr } = ran(python).await;
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code(), text(stdout), text(stderr))
}

#[tokio::test]
async fn jobs_are_enqueued_from_a_shell_and_from_python() {
    program("scheduler").expect("the programs are built");
    example_tools().expect("the tools of the examples are installed");
    db_test(async |db| {
        let stage = Stage::start(db).await;
        let _worker = stage.worker(&["--exec", "echo=cat"]);
        let mut examples = Command::new(root().join("examples/test"));
        examples.arg(stage.address());
        let Output { status, stderr, .. } = ran(examples).await;
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    })
    .await;
}

#[tokio::test]
async fn python_example_asks_for_a_worker_where_none_takes_the_job() {
    program("scheduler").expect("the programs are built");
    example_tools().expect("the tools of the examples are installed");
    db_test(async |db| {
        let stage = Stage::start(db).await;
        let (code, stdout, stderr) =
            python(stage.address(), &["--wait", "0", "send_welcome", "hello", "welcome/7"]).await;
        assert_eq!((code, stdout.as_str()), (Some(3), ""), "{stderr}");
        assert!(stderr.contains("still waiting: is a worker with a handler for send_welcome running"), "{stderr}");
    })
    .await;
}

#[tokio::test]
async fn python_example_tells_a_dead_job_from_one_that_waits() {
    program("scheduler").expect("the programs are built");
    example_tools().expect("the tools of the examples are installed");
    db_test(async |db| {
        let stage = Stage::start(db).await;
        let _worker = stage.worker(&["--exec", "charge=sh -c 'echo card refused >&2; exit 65'"]);
        let (code, stdout, stderr) = python(stage.address(), &["charge", "hello", "charge/7"]).await;
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
        assert!(stderr.ends_with("\ndead after 1 attempt(s): failed_for_good: card refused\n"), "{stderr}");
    })
    .await;
}

#[tokio::test]
async fn python_example_ends_with_one_line_where_a_call_fails() {
    program("scheduler").expect("the programs are built");
    example_tools().expect("the tools of the examples are installed");
    db_test(async |db| {
        let stage = Stage::start(db).await;
        stage.job_in(JobState::Ready, job("send_welcome", "welcome/7")).await;
        let nobody = free_address().to_string();
        let failures = [(stage.address(), "refused: ALREADY_EXISTS: "), (&nobody, "no answer from ")];
        for (address, begin) in failures {
            let (code, stdout, stderr) = python(address, &["send_welcome", "another payload", "welcome/7"]).await;
            assert_eq!((code, stdout.as_str(), stderr.lines().count()), (Some(2), "", 1), "{stderr}");
            assert!(stderr.starts_with(begin), "{stderr}");
        }
    })
    .await;
}
