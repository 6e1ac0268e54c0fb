//! What PostgreSQL knows of jobs, and what follows from it.

use std::collections::BTreeMap;
use std::time::Duration;

use client::v1::{AttemptEnd, JobState};
use queue_core::{Headers, NewJob, RetryOverrides};
use testbed::eventually;
use worker::{Context, HandlerError, Success};

use crate::jobs::{attempts, ends, enqueue, is, job, look};
use crate::system::{PATIENCE, Running, System, system, worker_of};

#[tokio::test]
async fn postgresql_holds_the_complete_job_its_attempts_timestamps_status_and_history() {
    system(async |system| {
        let mut scheduler = system.scheduler().await;
        let script = "[ $FENCEPOST_ATTEMPT = 1 ] && { echo why >&2; exit 1; }; echo done";
        let mut worker = system.exec_worker(&[&scheduler], &[("a", script)], &["--name", "w", "--effect", "a"]);
        let headers = Headers::new(BTreeMap::from([("tenant".to_owned(), "t-1".to_owned())])).expect("valid");
        let stored = NewJob { headers, ..attempts(job("a"), 4) }.with_key("k-1").expect("a key");
        let id = enqueue(&scheduler.client(), stored).await;
        is(&scheduler.client(), id, JobState::Succeeded).await;
        // Nothing of it was in a process.
        worker.kill();
        scheduler.process.kill();
        let scheduler = system.scheduler().await;
        let job = look(&scheduler.client(), id).await;
        assert_eq!((job.queue.as_str(), job.kind.as_str(), job.priority), ("default", "a", 4));
        assert_eq!(job.payload, "payload".as_bytes());
        assert_eq!((job.headers["tenant"].as_str(), job.idempotency_key.as_deref()), ("t-1", Some("k-1")));
        assert_eq!((job.result.as_deref(), job.effect.as_deref()), (Some(&b"done\n"[..]), Some(&b"done\n"[..])));
        assert_eq!((job.attempts_used, job.retry.and_then(|retry| retry.max_attempts)), (1, Some(4)));
        assert!(job.enqueued_at.is_some() && job.finished_at.is_some());
        assert_eq!(ends(&job), [AttemptEnd::Failed, AttemptEnd::Succeeded]);
        let [failed, succeeded] = &job.attempts[..] else { panic!("two attempts") };
        assert_eq!((failed.error.as_str(), failed.error_code.as_str(), failed.worker.as_str()), ("why", "exit_1", "w"));
        assert!(failed.token < succeeded.token && failed.ended_at.is_some() && succeeded.started_at.is_some());
        assert_eq!((failed.number, succeeded.number), (1, 2));
    })
    .await;
}

#[tokio::test]
async fn retryable_and_non_retryable_errors_are_told_apart() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let handler = |job: Context| async move {
            match (job.payload().as_ref(), job.attempt()) {
                (b"hopeless", _) => Err(HandlerError::permanent("bad_input", "no other attempt can help")),
                (_, 1) => Err(HandlerError::retryable("busy", "later")),
                _ => Ok(Success::default()),
            }
        };
        let _worker = Running::start(worker_of(&[&scheduler]).handler("a", handler));
        let hopeless = enqueue(&client, attempts(crate::jobs::job_in("default", "a", "hopeless"), 9)).await;
        let passing = enqueue(&client, attempts(job("a"), 9)).await;
        let dead = is(&client, hopeless, JobState::Dead).await;
        assert_eq!((ends(&dead), dead.dead_reason.as_str()), (vec![AttemptEnd::Failed], "failed_for_good"));
        let done = is(&client, passing, JobState::Succeeded).await;
        assert_eq!(ends(&done), [AttemptEnd::Failed, AttemptEnd::Succeeded]);
    })
    .await;
}

/// The waits of a job that fails always, in milliseconds as the database holds them.
pub async fn waits(system: &System<'_>, base: Duration, cap: Duration, failures: u32) -> Vec<i64> {
    let scheduler = system.scheduler().await;
    let _worker = system.exec_worker(&[&scheduler], &[("a", "exit 75")], &[]);
    let retry = RetryOverrides {
        max_attempts: Some(failures + 1),
        backoff_base: Some(base),
        backoff_cap: Some(cap),
        jitter: Some(0.0),
        ..RetryOverrides::default()
    };
    let client = scheduler.client();
    let id = enqueue(&client, NewJob { retry, ..job("a") }).await;
    let mut waits = Vec::new();
    for failed in 1..=failures {
        let what = format!("failure {failed} is committed");
        eventually(PATIENCE, &what, async || {
            let job = look(&client, id).await;
            job.state() == JobState::Scheduled && job.attempts_used == failed
        })
        .await;
        // Both times are those of the transaction that settled the failure.
        let wait = "select (extract(epoch from s.due_at - max(a.ended_at)) * 1000)::bigint
            from fencepost.scheduled s join fencepost.attempt_log a using (job_id) group by s.due_at";
        waits.push(system.db.number(wait).await);
        system.db.make_due().await;
    }
    is(&client, id, JobState::Dead).await;
    waits
}

#[tokio::test]
async fn backoff_of_base_2_and_max_60_waits_2_4_8_16_32_60_60_seconds() {
    system(async |system| {
        let waits = waits(system, Duration::from_secs(2), Duration::from_mins(1), 7).await;
        assert_eq!(waits, [2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
    })
    .await;
}

#[tokio::test]
async fn stale_running_jobs_are_found_and_put_back_after_a_crash() {
    system(async |system| {
        let mut scheduler = system.hasty_scheduler().await;
        let script = "echo x >> started; sleep 50";
        let mut worker = system.exec_worker(&[&scheduler], &[("a", script)], &["--concurrency", "20"]);
        crate::jobs::enqueue_all(&scheduler.client(), crate::jobs::jobs("a", 20)).await;
        system.wrote("started", 20).await;
        system.held_for_sure().await;
        // Everything crashes at once; another installation of the same finds what ran.
        worker.kill();
        scheduler.process.kill();
        let scheduler = system.hasty_scheduler().await;
        let _reaper = system.reaper(&[&scheduler], &[]);
        system.number_is("select count(*) from fencepost.ready where attempts = 1 and lease_losses = 1", 20).await;
        assert_eq!(system.db.number("select count(*) from fencepost.lease").await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_job_that_runs_into_its_timeout_is_detected_stopped_and_tried_again() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let handler = |job: Context| async move {
            if job.attempt() == 1 {
                job.cancellation().cancelled().await;
                assert_eq!(job.cancel_reason(), Some(&worker::CancelReason::TimedOut));
            }
            Ok::<_, HandlerError>(Success::default())
        };
        let _worker = Running::start(worker_of(&[&scheduler]).handler("a", handler));
        let timed = NewJob { timeout: Some(Duration::from_millis(300)), ..attempts(job("a"), 2) };
        let id = enqueue(&client, timed).await;
        let done = is(&client, id, JobState::Succeeded).await;
        assert_eq!(ends(&done), [AttemptEnd::Failed, AttemptEnd::Succeeded]);
        assert_eq!(done.attempts[0].error_code, "timeout");
    })
    .await;
}

#[tokio::test]
async fn execution_is_tracked_while_it_runs() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let script = "echo x >> started; while [ ! -e go ]; do sleep 0.05; done";
        let _worker = system.exec_worker(&[&scheduler], &[("a", script)], &["--name", "tracked"]);
        let id = enqueue(&client, job("a")).await;
        system.wrote("started", 1).await;
        assert_eq!(look(&client, id).await.state(), JobState::Leased);
        let seen = "select count(*) from fencepost.job_status
            where state = 'leased' and worker = 'tracked' and started_at <= now() and token > 0";
        assert_eq!(system.db.number(seen).await, 1);
        std::fs::write(system.path("go"), "").expect("lets it end");
        let done = is(&client, id, JobState::Succeeded).await;
        assert_eq!(done.attempts[0].worker, "tracked");
    })
    .await;
}
