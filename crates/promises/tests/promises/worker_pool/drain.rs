//! Shutdown: what runs gets its grace, what is left goes back, nothing is lost.

use std::time::Duration;

use client::Client;
use client::v1::{AttemptEnd, JobState};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::jobs::{attempts, ends, enqueue, is, job, look};
use crate::system::{PATIENCE, Scheduler, System, client_of, system};

#[tokio::test]
async fn sigterm_gives_running_jobs_the_grace_then_releases_them_with_no_attempt_used() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let scripts = [("quick", "echo q >> started; sleep 1"), ("slow", "echo s >> started; sleep 50")];
        let mut worker = system.exec_worker(&[&scheduler], &scripts, &["--grace", "2500ms"]);
        let quick = enqueue(&client, attempts(job("quick"), 1)).await;
        let slow = enqueue(&client, attempts(job("slow"), 1)).await;
        system.wrote("started", 2).await;
        let told = Instant::now();
        worker.terminate();
        assert!(worker.exit(PATIENCE).await.success());
        assert!(told.elapsed() > Duration::from_secs(2) && told.elapsed() < Duration::from_secs(9));
        assert_eq!(look(&client, quick).await.state(), JobState::Succeeded);
        let back = look(&client, slow).await;
        assert_eq!((back.state(), back.attempts_used, back.lease_losses), (JobState::Ready, 0, 0));
        assert_eq!((ends(&back), back.attempts[0].error.as_str()), (vec![AttemptEnd::Released], "shutdown"));
        // It may still use its only attempt.
        let _other = system.exec_worker(&[&scheduler], &[("slow", "true")], &[]);
        is(&client, slow, JobState::Succeeded).await;
    })
    .await;
}

#[tokio::test]
async fn a_worker_ends_as_soon_as_its_last_job_does_and_keeps_its_leases_until_then() {
    system(async |system| {
        let scheduler = system.hasty_scheduler().await;
        let _reaper = system.reaper(&[&scheduler], &[]);
        let client = scheduler.client();
        let script = "echo x >> started; while [ ! -e go ]; do sleep 0.05; done";
        let mut worker = system.exec_worker(&[&scheduler], &[("a", script)], &["--grace", "50s"]);
        let id = enqueue(&client, job("a")).await;
        system.wrote("started", 1).await;
        worker.terminate();
        let beats = "select (extract(epoch from expires_at) * 1000)::bigint from fencepost.worker_session";
        let first = system.db.number(beats).await;
        testbed::eventually(PATIENCE, "it is renewed for two lease times", async || {
            system.db.number(beats).await > first + 4_000
        })
        .await;
        std::fs::write(system.path("go"), "").expect("lets it end");
        assert!(worker.exit(Duration::from_secs(5)).await.success());
        let done = look(&client, id).await;
        assert_eq!(ends(&done), [AttemptEnd::Succeeded]);
        assert_eq!(system.lines("started").len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_second_signal_stops_at_once_and_gives_everything_back() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let script = "trap '' TERM; echo x >> started; while :; do sleep 0.1; done";
        let mut worker = system.exec_worker(&[&scheduler], &[("a", script)], &["--grace", "50s"]);
        let id = enqueue(&client, attempts(job("a"), 1)).await;
        system.wrote("started", 1).await;
        worker.terminate();
        worker.logged("\"draining\"", PATIENCE).await;
        worker.interrupt();
        worker.exit(Duration::from_secs(5)).await;
        let back = is(&client, id, JobState::Ready).await;
        assert_eq!((back.attempts_used, back.lease_losses), (0, 0));
    })
    .await;
}

/// Enqueues jobs that may be tried once only, under keys, until told to stop. Gives how many were acknowledged.
async fn produce(client: Client, stop: CancellationToken) -> i64 {
    let mut acknowledged = 0;
    while !stop.is_cancelled() {
        let keyed = attempts(job("a"), 1).with_key(&format!("load-{acknowledged}")).expect("a key");
        // Refused while nobody serves; then the same key is tried again.
        if client.enqueue(keyed).await.is_ok() {
            acknowledged += 1;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    acknowledged
}

async fn restart(system: &System<'_>, scheduler: &mut Scheduler) {
    let flags = [("--session-ttl", "10s")];
    scheduler.process = system.start_scheduler(scheduler.address, scheduler.metrics, &flags, &[]);
    testbed::listening(scheduler.address, PATIENCE).await;
}

#[tokio::test]
async fn a_rolling_restart_of_schedulers_and_workers_under_load_loses_no_job_and_uses_no_attempt() {
    system(async |system| {
        let mut schedulers = [system.scheduler().await, system.scheduler().await];
        let scripts = [("a", "echo $FENCEPOST_JOB_ID >> ran; sleep 0.1")];
        let start = |schedulers: &[Scheduler; 2]| {
            system.exec_worker(&[&schedulers[0], &schedulers[1]], &scripts, &["--concurrency", "6"])
        };
        let mut workers = [start(&schedulers), start(&schedulers)];
        let stop = CancellationToken::new();
        let load = tokio::spawn(produce(client_of(&[&schedulers[0], &schedulers[1]]), stop.clone()));
        system.wrote("ran", 20).await;
        for at in 0..2 {
            let scheduler = &mut schedulers[at];
            scheduler.process.terminate();
            assert!(scheduler.process.exit(PATIENCE).await.success());
            restart(system, scheduler).await;
            let before = system.lines("ran").len();
            system.wrote("ran", before + 20).await;
            workers[at].terminate();
            assert!(workers[at].exit(PATIENCE).await.success());
            workers[at] = start(&schedulers);
            let before = system.lines("ran").len();
            system.wrote("ran", before + 20).await;
        }
        stop.cancel();
        let acknowledged = load.await.expect("no panic");
        system.number_is("select count(*) from fencepost.job_status where state <> 'succeeded'", 0).await;
        let succeeded = system.db.number("select count(*) from fencepost.finished where attempts = 0").await;
        // An enqueue whose answer was lost at the very end may have been stored as well.
        assert!((acknowledged..=acknowledged + 1).contains(&succeeded), "{acknowledged} and {succeeded}");
        let used = "select count(*) from fencepost.attempt_log where ended in ('failed', 'lost', 'timed_out')";
        assert_eq!(system.db.number(used).await, 0);
        let mut ran = system.lines("ran");
        ran.sort_unstable();
        let runs = ran.len();
        ran.dedup();
        assert_eq!(ran.len(), runs, "each job ran once");
    })
    .await;
}

#[tokio::test]
async fn a_killed_scheduler_loses_nothing_and_its_workers_go_on_at_another_one() {
    system(async |system| {
        let mut schedulers = [system.scheduler().await, system.scheduler().await];
        let script = "echo $FENCEPOST_JOB_ID >> ran; sleep 0.1";
        let workers = [0, 1].map(|first| {
            let order = [&schedulers[first], &schedulers[1 - first]];
            system.exec_worker(&order, &[("a", script)], &["--concurrency", "6"])
        });
        let stop = CancellationToken::new();
        let load = tokio::spawn(produce(client_of(&[&schedulers[0], &schedulers[1]]), stop.clone()));
        for scheduler in &mut schedulers {
            let before = system.lines("ran").len();
            system.wrote("ran", before + 20).await;
            scheduler.process.kill();
            let before = system.lines("ran").len();
            system.wrote("ran", before + 20).await;
            restart(system, scheduler).await;
        }
        stop.cancel();
        let acknowledged = load.await.expect("no panic");
        system.number_is("select count(*) from fencepost.job_status where state <> 'succeeded'", 0).await;
        assert!(system.db.number("select count(*) from fencepost.finished").await >= acknowledged);
        let used = "select count(*) from fencepost.attempt_log where ended in ('failed', 'lost', 'timed_out')";
        assert_eq!(system.db.number(used).await, 0, "no lease was lost with the scheduler");
        drop(workers);
    })
    .await;
}
