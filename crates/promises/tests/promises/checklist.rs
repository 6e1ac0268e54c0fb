//! The verification checklist of the reliable worker pool, one test for each line.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::v1::{AttemptEnd, EffectVerdict, JobState, SettleVerdict};
use queue_core::{NewJob, RetryOverrides};
use testbed::free_address;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use worker::{CancelReason, Context, Success};

use crate::jobs::{at_once, attempts, ends, enqueue, enqueue_all, is, job, jobs, look};
use crate::locks::{NO_LEASES, holding};
use crate::metrics::shows;
use crate::stream::{Stream, every_outcome, hello, lease};
use crate::system::{PATIENCE, Running, SHORT_TTL, client_of, says, system, worker_of};

#[tokio::test]
async fn the_schema_applies_cleanly() {
    system(async |system| {
        system.db.run("drop schema fencepost cascade; drop table if exists public._sqlx_migrations").await;
        let url = system.db.url();
        let migrate = || system.processes.start("scheduler", &["migrate"], &[("FENCEPOST_DATABASE_URL", &url)]);
        // Two at once, and once more.
        let (mut one, mut other) = (migrate(), migrate());
        assert!(one.exit(PATIENCE).await.success() && other.exit(PATIENCE).await.success());
        assert!(migrate().exit(PATIENCE).await.success());
        let scheduler = system.scheduler().await;
        let id = enqueue(&scheduler.client(), job("a")).await;
        assert_eq!(look(&scheduler.client(), id).await.state(), JobState::Ready);
    })
    .await;
}

#[tokio::test]
async fn concurrent_workers_never_hold_the_same_live_lease() {
    const JOBS: usize = 300;
    system(async |system| {
        let schedulers = [system.scheduler().await, system.scheduler().await];
        let held = Arc::new(Mutex::new((HashSet::new(), Vec::new())));
        let workers = [0, 1, 0, 1].map(|at| {
            let held = held.clone();
            let handler = move |job: Context| {
                let held = held.clone();
                async move {
                    let id = job.job_id();
                    assert!(held.lock().expect("no panic").0.insert(id), "somebody else holds job {id}");
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    let mut held = held.lock().expect("no panic");
                    held.0.remove(&id);
                    held.1.push(id);
                    Ok(Success::default())
                }
            };
            Running::start(worker_of(&[&schedulers[at]]).concurrency(4).handler("a", handler))
        });
        let mut ids = enqueue_all(&client_of(&[&schedulers[0], &schedulers[1]]), jobs("a", JOBS)).await;
        system.succeeded(300).await;
        let mut ran = held.lock().expect("no handler panicked").1.clone();
        ids.sort_unstable();
        ran.sort_unstable();
        assert_eq!(ran, ids, "each ran exactly once");
        let names = "select count(distinct session_no) from fencepost.finished";
        assert!(system.db.number(names).await > 1, "several workers took part");
        drop(workers);
    })
    .await;
}

#[tokio::test]
async fn a_graceful_shutdown_starts_no_new_work_after_a_completed_claim() {
    system(async |system| {
        let bounds = [("--session-ttl", "10s"), ("--db-lock-timeout", "5s"), ("--db-statement-timeout", "6s")];
        let scheduler = system.scheduler_with(&bounds).await;
        let client = scheduler.client();
        let script = "echo $FENCEPOST_JOB_ID >> started; while [ ! -e go ]; do sleep 0.05; done";
        let mut worker = system.exec_worker(&[&scheduler], &[("a", script)], &["--concurrency", "2"]);
        let running = enqueue(&client, job("a")).await;
        system.wrote("started", 1).await;
        let mut second = None;
        // The lease of the second job is under way when the signal comes, and commits after it.
        holding(system, NO_LEASES, async || {
            let client = client.clone();
            second = Some(tokio::spawn(async move { enqueue(&client, job("a")).await }));
            let waiting = "select count(*) from pg_locks where relation = 'fencepost.lease'::regclass and not granted";
            system.number_is(waiting, 1).await;
            worker.terminate();
            worker.logged("\"draining\"", PATIENCE).await;
        })
        .await;
        let second = second.expect("begins").await.expect("is enqueued");
        let back = is(&client, second, JobState::Ready).await;
        assert_eq!((back.attempts_used, back.lease_losses), (0, 0), "it was given back and cost nothing");
        std::fs::write(system.path("go"), "").expect("lets the first job end");
        assert!(worker.exit(PATIENCE).await.success());
        is(&client, running, JobState::Succeeded).await;
        assert_eq!(system.lines("started"), [running.to_string()], "the second job never started");
        let _other = system.exec_worker(&[&scheduler], &[("a", script)], &[]);
        assert_eq!(is(&client, second, JobState::Succeeded).await.attempts_used, 0);
    })
    .await;
}

#[tokio::test]
async fn a_crashed_workers_job_becomes_claimable_after_expiry() {
    system(async |system| {
        let scheduler = system.hasty_scheduler().await;
        let client = scheduler.client();
        let _reaper = system.reaper(&[&scheduler], &[]);
        let script = "echo $FENCEPOST_ATTEMPT >> started; [ $FENCEPOST_ATTEMPT = 2 ] || sleep 50";
        let mut worker = system.exec_worker(&[&scheduler], &[("a", script)], &[]);
        // The time a job may take has no influence on how soon a crash is noticed.
        let long = NewJob { timeout: Some(Duration::from_hours(2)), ..job("a") };
        let id = enqueue(&client, long).await;
        system.wrote("started", 1).await;
        system.held_for_sure().await;
        let killed = Instant::now();
        worker.kill();
        let _other = system.exec_worker(&[&scheduler], &[("a", script)], &[]);
        let done = is(&client, id, JobState::Succeeded).await;
        assert!(
            killed.elapsed() < SHORT_TTL * 4,
            "within the lease and a few passes, not after {:?}",
            killed.elapsed()
        );
        assert_eq!(ends(&done), [AttemptEnd::Lost, AttemptEnd::Succeeded]);
        assert_eq!((done.attempts_used, done.lease_losses), (1, 1));
        assert_eq!(system.lines("started"), ["1", "2"]);
        let early = "select count(*) from fencepost.attempt_log a join fencepost.worker_session s using (session_no)
            where a.ended = 'lost' and a.ended_at < s.expires_at";
        assert_eq!(system.db.number(early).await, 0, "not before the lease was over");
    })
    .await;
}

#[tokio::test]
async fn losing_ownership_stops_processing() {
    system(async |system| {
        let scheduler = system.hasty_scheduler().await;
        let client = scheduler.client();
        let _reaper = system.reaper(&[&scheduler], &[]);
        let (started, stopped) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(None)));
        let (begun, reason) = (started.clone(), stopped.clone());
        let handler = move |job: Context| {
            let (begun, reason) = (begun.clone(), reason.clone());
            async move {
                if job.attempt() > 1 {
                    return Ok(Success { effect: Some("second".into()), ..Success::default() });
                }
                begun.add_permits(1);
                job.cancellation().cancelled().await;
                *reason.lock().expect("no panic") = job.cancel_reason().cloned();
                Ok(Success { effect: Some("first".into()), ..Success::default() })
            }
        };
        let _worker = Running::start(worker_of(&[&scheduler]).handler("a", handler));
        let id = enqueue(&client, job("a")).await;
        started.acquire().await.expect("open").forget();
        system.db.run("update fencepost.worker_session set dead = true").await;
        let done = is(&client, id, JobState::Succeeded).await;
        assert_eq!(*stopped.lock().expect("no panic"), Some(CancelReason::LeaseLost));
        assert_eq!(done.effect.as_deref(), Some(&b"second"[..]), "what the loser returned was refused");
        assert_eq!(ends(&done), [AttemptEnd::Lost, AttemptEnd::Succeeded]);
    })
    .await;
}

#[tokio::test]
async fn failed_jobs_retry_with_delay_and_end_up_dead() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let script = "echo $FENCEPOST_ATTEMPT >> started; echo broken >&2; exit 75";
        let _worker = system.exec_worker(&[&scheduler], &[("a", script)], &[]);
        let retry = RetryOverrides {
            max_attempts: Some(3),
            backoff_base: Some(Duration::from_millis(400)),
            jitter: Some(0.0),
            ..RetryOverrides::default()
        };
        let id = enqueue(&client, NewJob { retry, ..job("a") }).await;
        let dead = is(&client, id, JobState::Dead).await;
        assert_eq!(ends(&dead), [AttemptEnd::Failed; 3]);
        assert_eq!((dead.dead_reason.as_str(), dead.attempts_used), ("attempts_exhausted", 3));
        assert!(dead.attempts.iter().all(|attempt| attempt.error == "broken" && attempt.error_code == "exit_75"));
        let too_soon = "with pause as (
                select number, extract(epoch from started_at - lag(ended_at) over (order by token)) * 1000 as ms
                from fencepost.attempt_log
            )
            select count(*) from pause where ms < case number when 2 then 400 else 800 end";
        assert_eq!(system.db.number(too_soon).await, 0);
        assert_eq!(system.lines("started"), ["1", "2", "3"]);
    })
    .await;
}

#[tokio::test]
async fn repeated_delivery_leaves_one_committed_effect_per_key() {
    system(async |system| {
        let scheduler = system.hasty_scheduler().await;
        let client = scheduler.client();
        let _reaper = system.reaper(&[&scheduler], &[]);
        let keyed = NewJob { retry: at_once(), ..job("a") }.with_key("invoice-7").expect("a key");
        let first = client.enqueue(keyed.clone()).await.expect("is enqueued");
        let mut loser = Stream::open(&scheduler, hello("a")).await.expect("opens");
        loser.credit(1).await;
        let lost = loser.grant().await;
        system.db.run("update fencepost.worker_session set dead = true").await;
        let mut holder = Stream::open(&scheduler, hello("a")).await.expect("opens");
        holder.credit(1).await;
        let grant = holder.grant().await;
        assert!(grant.token > lost.token && grant.idempotency_key.as_deref() == Some("invoice-7"));
        let [success, ..] = every_outcome();
        let applied = holder.settle(lease(&grant), success.clone()).await;
        assert_eq!((applied.verdict(), applied.effect()), (SettleVerdict::Applied, EffectVerdict::Applied));
        assert_eq!(holder.settle(lease(&grant), success.clone()).await.verdict(), SettleVerdict::Duplicate);
        assert_eq!(loser.settle(lease(&lost), success).await.verdict(), SettleVerdict::Fenced);
        let again = client.enqueue(keyed).await.expect("is enqueued");
        assert!(again.duplicate && again.job_id == first.job_id);
        assert_eq!(system.db.number("select count(*) from fencepost.effect where key = 'invoice-7'").await, 1);
    })
    .await;
}

#[tokio::test]
async fn database_and_shutdown_bounds_stay_below_the_lease() {
    system(async |system| {
        let bounds = ["connect", "statement", "lock", "idle"].map(|bound| format!("--db-{bound}-timeout"));
        for flag in bounds.iter().map(String::as_str).chain(["--grant-ack-timeout"]) {
            let flags = [("--session-ttl", "3s"), (flag, "3s")];
            let mut refused = system.start_scheduler(free_address(), free_address(), &flags, &[]);
            assert!(!refused.exit(PATIENCE).await.success());
            says(&refused, &[flag, "--session-ttl"]).await;
        }
        // A worker whose handler ignores every signal gives its job back before its lease would be over.
        let scheduler = system.scheduler().await;
        let script = "trap '' TERM; echo x >> started; while :; do sleep 0.1; done";
        let mut worker = system.exec_worker(&[&scheduler], &[("a", script)], &["--grace", "200ms"]);
        let id = enqueue(&scheduler.client(), job("a")).await;
        system.wrote("started", 1).await;
        let told = Instant::now();
        worker.terminate();
        assert!(worker.exit(PATIENCE).await.success());
        assert!(told.elapsed() < Duration::from_secs(8), "the lease has 10 s, the release took {:?}", told.elapsed());
        let back = look(&scheduler.client(), id).await;
        assert_eq!((back.state(), back.attempts_used), (JobState::Ready, 0));
        assert_eq!(ends(&back), [AttemptEnd::Released]);
    })
    .await;
}

#[tokio::test]
async fn logs_and_queries_expose_backlog_failures_and_lease_health() {
    system(async |system| {
        let mut scheduler = system.hasty_scheduler().await;
        let client = scheduler.client();
        let mut reaper = system.reaper(&[&scheduler], &[]);
        enqueue_all(&client, jobs("nobody", 3)).await;
        let fails = enqueue(&client, attempts(job("fails"), 1)).await;
        enqueue(&client, attempts(job("stays"), 9)).await;
        let scripts = [("fails", "exit 75"), ("stays", "echo x >> started; sleep 50")];
        let mut crashes = system.exec_worker(&[&scheduler], &scripts, &[]);
        system.wrote("started", 1).await;
        is(&client, fails, JobState::Dead).await;
        system.held_for_sure().await;
        crashes.kill();
        let _worker = system.exec_worker(&[&scheduler], &scripts, &[]);
        system.wrote("started", 2).await;

        let stats = client.queue_stats(&[]).await.expect("answers");
        let queue = &stats[0];
        assert_eq!((queue.ready, queue.leased, queue.dead, queue.scheduled), (3, 1, 1, 0));
        assert!(queue.oldest_ready_age.is_some());
        let health = "select count(*) from fencepost.job_status where state = 'leased' and worker is not null
            and token > 0 and lease_losses = 1";
        assert_eq!(system.db.number(health).await, 1);
        let sessions = "select count(*) from fencepost.worker_session where expires_at > now() and not dead";
        assert_eq!(system.db.number(sessions).await, 1);
        scheduler.process.logged(&format!("\"job is dead\",\"job.id\":\"{fails}\""), PATIENCE).await;
        scheduler.process.logged("leases of dead sessions taken back", PATIENCE).await;
        reaper.logged("\"reaped\":1", PATIENCE).await;
        for (state, jobs) in [("ready", 3.0), ("leased", 1.0), ("dead", 1.0)] {
            shows(scheduler.metrics, "fencepost_queue_jobs", &[&format!("state=\"{state}\"")], jobs).await;
        }
        shows(scheduler.metrics, "fencepost_attempts_ended_total", &["end=\"lost\""], 1.0).await;
        shows(scheduler.metrics, "fencepost_attempts_ended_total", &["end=\"failed\""], 1.0).await;
    })
    .await;
}
