//! Who takes back what was abandoned, and who does when that one is gone.

use client::v1::{AttemptEnd, JobState};
use testbed::Process;

use crate::jobs::{attempts, ends, enqueue, is, job};
use crate::system::{PATIENCE, Scheduler, System, system};

/// A worker dies with a job; waits until it is taken back.
async fn crash(system: &System<'_>, scheduler: &Scheduler) {
    let before = system.lines("started").len();
    let mut worker = system.exec_worker(&[scheduler], &[("a", "echo x >> started; sleep 50")], &[]);
    let id = enqueue(&scheduler.client(), attempts(job("a"), 1)).await;
    system.wrote("started", before + 1).await;
    system.held_for_sure().await;
    worker.kill();
    assert_eq!(ends(&is(&scheduler.client(), id, JobState::Dead).await), [AttemptEnd::Lost]);
}

fn acted(reaper: &Process) -> bool {
    reaper.log().iter().any(|line| line.contains("\"reaped\":1"))
}

#[tokio::test]
async fn of_two_reapers_one_acts_and_the_other_takes_over_when_it_is_killed() {
    system(async |system| {
        let scheduler = system.hasty_scheduler().await;
        let mut first = system.reaper(&[&scheduler], &["--name", "first"]);
        first.logged("acting", PATIENCE).await;
        let mut second = system.reaper(&[&scheduler], &["--name", "second"]);
        second.logged("standing by", PATIENCE).await;
        crash(system, &scheduler).await;
        first.logged("\"reaped\":1", PATIENCE).await;
        assert!(!acted(&second));
        first.kill();
        system.db.expire_maintenance().await;
        second.logged("acting", PATIENCE).await;
        crash(system, &scheduler).await;
        second.logged("\"reaped\":1", PATIENCE).await;
    })
    .await;
}

#[tokio::test]
async fn a_reaper_that_slept_while_another_took_over_stands_by_when_it_wakes() {
    system(async |system| {
        let scheduler = system.hasty_scheduler().await;
        let mut first = system.reaper(&[&scheduler], &["--name", "first"]);
        first.logged("acting", PATIENCE).await;
        first.freeze();
        let mut second = system.reaper(&[&scheduler], &["--name", "second"]);
        system.db.expire_maintenance().await;
        second.logged("acting", PATIENCE).await;
        first.thaw();
        first.logged("standing by", PATIENCE).await;
        crash(system, &scheduler).await;
        second.logged("\"reaped\":1", PATIENCE).await;
        assert!(!acted(&first));
    })
    .await;
}

#[tokio::test]
async fn a_reaper_that_is_asked_to_stop_hands_over_at_once() {
    system(async |system| {
        let scheduler = system.hasty_scheduler().await;
        let mut first = system.reaper(&[&scheduler], &["--name", "first"]);
        first.logged("acting", PATIENCE).await;
        let mut second = system.reaper(&[&scheduler], &["--name", "second"]);
        second.logged("standing by", PATIENCE).await;
        first.terminate();
        assert!(first.exit(PATIENCE).await.success());
        second.logged("acting", std::time::Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn without_any_reaper_a_scheduler_stands_in() {
    system(async |system| {
        let scheduler = system.hasty_scheduler().await;
        crash(system, &scheduler).await;
    })
    .await;
}
