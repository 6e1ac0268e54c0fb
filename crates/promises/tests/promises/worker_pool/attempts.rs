//! Attempts, their budgets and their pauses.

use std::time::Duration;

use client::v1::{AttemptEnd, JobState};
use queue_core::{NewJob, RetryOverrides};

use crate::durable_source::waits;
use crate::jobs::{attempts, ends, enqueue, is, job};
use crate::system::{PATIENCE, system};

#[tokio::test]
async fn retries_wait_exactly_1_2_4_8_16_32_64_64_seconds_with_jitter_0() {
    system(async |system| {
        let waits = waits(system, Duration::from_secs(1), Duration::from_secs(64), 8).await;
        assert_eq!(waits, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000]);
    })
    .await;
}

#[tokio::test]
async fn an_expired_last_attempt_becomes_dead_by_the_reaper_and_is_never_started_twice() {
    system(async |system| {
        let mut scheduler = system.hasty_scheduler().await;
        let client = scheduler.client();
        let _reaper = system.reaper(&[&scheduler], &[]);
        let script = "echo x >> started; sleep 50";
        let mut worker = system.exec_worker(&[&scheduler], &[("a", script)], &[]);
        let id = enqueue(&client, attempts(job("a"), 1)).await;
        system.wrote("started", 1).await;
        system.held_for_sure().await;
        worker.kill();
        let _other = system.exec_worker(&[&scheduler], &[("a", script)], &[]);
        let dead = is(&client, id, JobState::Dead).await;
        assert_eq!(ends(&dead), [AttemptEnd::Lost]);
        assert_eq!((dead.attempts_used, dead.dead_reason.as_str()), (1, "attempts_exhausted"));
        assert_eq!(system.lines("started").len(), 1);
        scheduler.process.logged("\"dead\":1", PATIENCE).await;
    })
    .await;
}

#[tokio::test]
async fn a_job_that_kills_its_worker_is_dead_after_its_lease_losses_though_it_has_attempts_left() {
    system(async |system| {
        let scheduler = system.hasty_scheduler().await;
        let client = scheduler.client();
        let _reaper = system.reaper(&[&scheduler], &[]);
        let poison =
            "echo $FENCEPOST_ATTEMPT >> started; while [ ! -e sure ]; do sleep 0.05; done; kill -9 $PPID; sleep 1";
        let retry = RetryOverrides { max_attempts: Some(50), max_lease_losses: Some(3), ..RetryOverrides::default() };
        let id = enqueue(&client, NewJob { retry, ..job("a") }).await;
        for lives in 1..=3 {
            let mut worker = system.exec_worker(&[&scheduler], &[("a", poison)], &[]);
            system.wrote("started", usize::try_from(lives).expect("few")).await;
            system.held_for_sure().await;
            std::fs::write(system.path("sure"), "").expect("lets it kill");
            assert!(!worker.exit(PATIENCE).await.success());
            std::fs::remove_file(system.path("sure")).expect("for the next one");
            system.number_is("select count(*) from fencepost.attempt_log where ended = 'lost'", lives).await;
        }
        let dead = is(&client, id, JobState::Dead).await;
        assert_eq!((dead.dead_reason.as_str(), dead.lease_losses), ("lease_losses_exhausted", 3));
        assert_eq!(system.lines("started"), ["1", "2", "3"]);
        // The next worker lives.
        let _worker = system.exec_worker(&[&scheduler], &[("a", "true")], &[]);
        let good = enqueue(&client, job("a")).await;
        is(&client, good, JobState::Succeeded).await;
    })
    .await;
}
