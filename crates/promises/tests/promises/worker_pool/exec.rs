//! Commands as handlers: what they get, what their end means, and that nothing of them outlives their attempt.

use std::collections::BTreeMap;
use std::time::Duration;

use client::v1::{AttemptEnd, JobState};
use client::{Client, ConnectOptions, Secret};
use queue_core::{Headers, NewJob};
use testbed::{eventually, free_address, listening};

use crate::jobs::{at_once, attempts, ends, enqueue, is, job};
use crate::system::{PATIENCE, System, system};

/// Notes the ids of itself and of a child in the background, and never ends by itself.
const FAMILY: &str = "sleep 100 & echo $! >> family; echo $$ >> family; echo x >> started; wait";

#[tokio::test]
async fn a_command_gets_key_token_attempt_trace_and_headers_and_never_the_workers_credentials() {
    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    system(async |system| {
        let (address, metrics) = (free_address(), free_address());
        let token = ("FENCEPOST_TOKEN", "planted-token");
        let _scheduler = system.start_scheduler(address, metrics, &[], &[token]);
        listening(address, PATIENCE).await;
        let url = format!("http://{address}");
        let exec = format!("a={}", system.script("a", "env > environment; cat > input"));
        let env = [token, ("OTEL_EXPORTER_OTLP_HEADERS", "key=planted-header"), ("FENCEPOST_EXEC_SECRET", "planted-x")];
        let _worker = system.processes.start("worker", &["--scheduler", &url, "--exec", &exec], &env);
        let options = ConnectOptions::new([url]).with_token(Some(Secret::new("planted-token")));
        let client = Client::lazy(&options).expect("valid options");
        let headers = Headers::new(BTreeMap::from([("x-tenant".to_owned(), "t 1".to_owned())])).expect("valid");
        let traceparent = Some(TRACE.to_owned());
        let described = NewJob { headers, traceparent, ..attempts(job("a"), 7) }.with_key("k-1").expect("a key");
        let id = enqueue(&client, described).await;
        let done = is(&client, id, JobState::Succeeded).await;
        let environment = system.lines("environment");
        let fencing = format!("FENCEPOST_FENCING_TOKEN={}", done.attempts[0].token);
        let number = format!("FENCEPOST_JOB_ID={id}");
        for line in [
            "FENCEPOST_KEY=k-1",
            "FENCEPOST_ATTEMPT=1",
            "FENCEPOST_MAX_ATTEMPTS=7",
            "FENCEPOST_QUEUE=default",
            "FENCEPOST_KIND=a",
            "FENCEPOST_HEADER_X_TENANT=t 1",
            &fencing,
            &number,
        ] {
            assert!(environment.iter().any(|has| has == line), "no {line} in {environment:?}");
        }
        let trace = environment.iter().find_map(|line| line.strip_prefix("TRACEPARENT=")).expect("has a trace");
        assert_eq!(trace[..35], TRACE[..35], "the trace of the enqueue");
        assert!(!environment.iter().any(|line| line.contains("planted")), "{environment:?}");
        assert_eq!(system.lines("input"), ["payload"]);
    })
    .await;
}

#[tokio::test]
async fn exit_statuses_decide_and_standard_output_is_the_result() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let script = "read -r how; echo \"out $how\"; echo \"err $how\" >&2
            [ $FENCEPOST_ATTEMPT = 2 ] && exit 0
            [ $how = signal ] && kill -9 $$
            exit $how";
        let _worker = system.exec_worker(&[&scheduler], &[("a", script)], &[]);
        for (how, end, code) in [
            ("0", JobState::Succeeded, None),
            ("65", JobState::Dead, Some("exit_65")),
            ("100", JobState::Dead, Some("exit_100")),
            ("75", JobState::Succeeded, Some("exit_75")),
            ("1", JobState::Succeeded, Some("exit_1")),
            ("signal", JobState::Succeeded, Some("signal")),
        ] {
            let id = enqueue(&client, attempts(crate::jobs::job_in("default", "a", &format!("{how}\n")), 2)).await;
            let done = is(&client, id, end).await;
            let first = &done.attempts[0];
            assert_eq!(first.error_code, code.unwrap_or_default(), "status {how}");
            assert!(code.is_none() || first.error.ends_with(&format!("err {how}")), "{}", first.error);
            if end == JobState::Succeeded {
                assert_eq!(done.result.as_deref(), Some(format!("out {how}\n").as_bytes()));
            }
        }
    })
    .await;
}

async fn family_is_gone(system: &System<'_>) {
    eventually(PATIENCE, "the whole process group is gone", async || {
        let living = system.processes.living();
        let family = system.lines("family");
        family.len() >= 2 && family.iter().all(|id| !living.iter().any(|living| living.to_string() == *id))
    })
    .await;
}

#[tokio::test]
async fn the_process_group_of_a_command_is_killed_at_its_timeout() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let _worker = system.exec_worker(&[&scheduler], &[("a", FAMILY)], &[]);
        let timed = NewJob { timeout: Some(Duration::from_millis(500)), ..attempts(job("a"), 1) };
        let id = enqueue(&client, timed).await;
        let dead = is(&client, id, JobState::Dead).await;
        assert_eq!((ends(&dead), dead.attempts[0].error_code.as_str()), (vec![AttemptEnd::Failed], "timeout"));
        family_is_gone(system).await;
    })
    .await;
}

#[tokio::test]
async fn the_process_group_of_a_command_is_killed_when_its_lease_is_lost() {
    system(async |system| {
        let scheduler = system.hasty_scheduler().await;
        let _reaper = system.reaper(&[&scheduler], &[]);
        let client = scheduler.client();
        let _worker = system.exec_worker(&[&scheduler], &[("a", FAMILY)], &[]);
        let id = enqueue(&client, attempts(job("a"), 1)).await;
        system.wrote("started", 1).await;
        system.db.run("update fencepost.worker_session set dead = true").await;
        family_is_gone(system).await;
        assert_eq!(ends(&is(&client, id, JobState::Dead).await), [AttemptEnd::Lost]);
    })
    .await;
}

#[tokio::test]
async fn the_process_group_of_a_command_is_killed_at_the_end_of_a_drain() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let mut worker = system.exec_worker(&[&scheduler], &[("a", FAMILY)], &["--grace", "100ms"]);
        let id = enqueue(&client, job("a")).await;
        system.wrote("started", 1).await;
        worker.terminate();
        assert!(worker.exit(PATIENCE).await.success());
        family_is_gone(system).await;
        assert_eq!(ends(&is(&client, id, JobState::Ready).await), [AttemptEnd::Released]);
    })
    .await;
}

#[tokio::test]
async fn what_a_command_leaves_behind_does_not_outlive_its_attempt() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let leaves = "sleep 100 & echo $! >> family; echo $$ >> family; echo done";
        let _worker = system.exec_worker(&[&scheduler], &[("a", leaves)], &[]);
        let id = enqueue(&client, job("a")).await;
        assert_eq!(is(&client, id, JobState::Succeeded).await.result.as_deref(), Some(&b"done\n"[..]));
        family_is_gone(system).await;
    })
    .await;
}

#[tokio::test]
async fn a_command_never_runs_beside_its_successor_after_its_worker_was_killed() {
    system(async |system| {
        let scheduler = system.hasty_scheduler().await;
        let _reaper = system.reaper(&[&scheduler], &[]);
        let client = scheduler.client();
        // The first attempt and its child ignore SIGTERM and never end; the second notes which of them live.
        let script = "if [ $FENCEPOST_ATTEMPT = 1 ]; then
                trap '' TERM
                sh -c 'echo $$ >> family; while :; do sleep 0.1; done' & echo $$ >> family
                while :; do sleep 0.1; done
            fi
            for id in $(cat family); do grep -Eq '^State:.[^ZX]' /proc/$id/status 2> /dev/null && echo $id; done
            exit 0";
        let mut killed = system.exec_worker(&[&scheduler], &[("a", script)], &[]);
        let id = enqueue(&client, NewJob { retry: at_once(), ..job("a") }).await;
        system.wrote("family", 2).await;
        system.held_for_sure().await;
        killed.kill();
        let _successor = system.exec_worker(&[&scheduler], &[("a", script)], &[]);
        let done = is(&client, id, JobState::Succeeded).await;
        assert_eq!(ends(&done), [AttemptEnd::Lost, AttemptEnd::Succeeded]);
        assert_eq!(done.result, None, "nothing of the first attempt lives");
    })
    .await;
}
