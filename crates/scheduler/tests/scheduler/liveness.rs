//! Sessions: heartbeats, what they list, and what becomes of a worker that falls silent.

use std::time::Duration;

use queue_proto::v1::work_request::Message as Request;
use queue_proto::v1::work_response::Message as Response;
use queue_proto::v1::{self, AttemptEnd, JobState, SettleVerdict};
use testbed::TestDatabase;
use tonic::Code;

use crate::hand::{Hand, lease, succeeded};
use crate::setup::{SHORT, job, with_flags, with_scheduler};

/// Lets the time of the newest session be over and no grace be left.
async fn expire_newest(db: &TestDatabase) {
    let newest = db.number("select max(session_no) from fencepost.worker_session").await;
    db.expire_session(newest).await;
    db.end_grace().await;
}

#[tokio::test]
async fn an_acknowledged_lease_is_kept_as_long_as_heartbeats_go_on() {
    with_flags(&SHORT, async |db, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let held = hand.take(1).await;
        db.end_grace().await;
        // More than twice the session's time.
        for _ in 0..3 {
            hand.hold(&held, Duration::from_millis(1_500)).await;
            assert_eq!(scheduler.reap().await, (0, 0));
        }
        assert_eq!(scheduler.state(id).await, JobState::Leased);
        assert_eq!(hand.settle(&held[0], succeeded()).await.verdict(), SettleVerdict::Applied);
    })
    .await;
}

#[tokio::test]
async fn heartbeats_that_come_together_are_renewed_in_one_statement() {
    with_scheduler(async |db, scheduler| {
        let mut hands = Vec::new();
        for _ in 0..20 {
            hands.push(Hand::open(scheduler, &["q"], &["k"]).await);
        }
        for renewed in futures::future::join_all(hands.iter_mut().map(|hand| hand.beat(&[]))).await {
            let next = Duration::try_from(renewed.next_heartbeat.expect("a pace")).expect("a time");
            assert!(next <= Duration::from_secs(5), "a third of the lease time at most");
        }
        let commits = db.number("select count(distinct xmin::text) from fencepost.worker_session").await;
        assert!(commits <= 5, "{commits} commits for the heartbeats of 20 workers");
    })
    .await;
}

#[tokio::test]
async fn a_silent_workers_job_goes_to_another_with_a_larger_token_and_late_writes_are_fenced() {
    with_scheduler(async |db, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut silent = Hand::open(scheduler, &["q"], &["k"]).await;
        let old = silent.take_one().await;
        expire_newest(db).await;
        assert_eq!(scheduler.reap().await, (1, 1));

        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let new = hand.take_one().await;
        assert_eq!((new.job_id, new.attempt), (id, 2));
        assert!(new.token > old.token);

        let before = scheduler.job(id).await;
        assert_eq!((before.attempts_used, before.lease_losses), (1, 1));
        assert_eq!((before.attempts[0].end(), before.attempts[0].token), (AttemptEnd::Lost, old.token));
        let effect = v1::Succeeded { effect: Some("late".into()), ..v1::Succeeded::default() };
        let late = silent.settle(&old, v1::settlement::Outcome::Succeeded(effect)).await;
        assert_eq!(late.verdict(), SettleVerdict::Fenced);
        assert_eq!(silent.settle(&old, crate::hand::failed("late")).await.verdict(), SettleVerdict::Fenced);
        assert_eq!(scheduler.job(id).await, before, "nothing has changed");

        silent.pulse(std::slice::from_ref(&old)).await;
        let ended = silent.end().await.expect("an error");
        assert_eq!(ended.code(), Code::FailedPrecondition, "expired, and not taken over: {ended}");
        assert_eq!(hand.settle(&new, succeeded()).await.verdict(), SettleVerdict::Applied);
        let after = scheduler.job(id).await;
        let again = silent.again(scheduler, std::slice::from_ref(&old)).await.err().expect("the session has expired");
        assert_eq!(again.code(), Code::FailedPrecondition, "{again}");
        assert_eq!(scheduler.job(id).await, after);
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_only_pings_ends_when_a_job_finds_its_session_expired() {
    with_scheduler(async |db, scheduler| {
        let mut silent = Hand::open(scheduler, &["q"], &["k"]).await;
        silent.room(1).await;
        expire_newest(db).await;
        assert_eq!(scheduler.reap().await, (1, 0));
        scheduler.enqueue(job("q", "k")).await;
        let ended = silent.end().await.expect("an error");
        assert_eq!(ended.code(), Code::FailedPrecondition, "{ended}");
    })
    .await;
}

#[tokio::test]
async fn without_any_reaper_a_scheduler_expires_silent_sessions_itself() {
    with_flags(&SHORT, async |db, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut silent = Hand::open(scheduler, &["q"], &["k"]).await;
        let old = silent.take_one().await;
        // Its acknowledgement has arrived. The process dies; nobody makes a pass but the scheduler.
        silent.beat(std::slice::from_ref(&old)).await;
        silent.close();
        db.end_grace().await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        hand.room(1).await;
        let new = loop {
            hand.pulse(&[]).await;
            let got = tokio::time::timeout(Duration::from_millis(500), hand.grants(1)).await;
            if let Ok(mut grants) = got {
                break grants.remove(0);
            }
        };
        assert_eq!((new.job_id, new.attempt), (id, 2));
        assert!(new.token > old.token);
    })
    .await;
}

#[tokio::test]
async fn lease_losses_are_bounded_apart_from_attempts() {
    with_scheduler(async |db, scheduler| {
        let retry = v1::RetryPolicy { max_lease_losses: Some(2), ..v1::RetryPolicy::default() };
        let id = scheduler.enqueue(v1::NewJob { retry: Some(retry), ..job("q", "k") }).await;
        for attempt in 1..=2 {
            let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
            assert_eq!(hand.take_one().await.attempt, attempt);
            expire_newest(db).await;
            assert_eq!(scheduler.reap().await, (1, 1));
        }
        let job = scheduler.job(id).await;
        assert_eq!((job.state(), job.dead_reason.as_str()), (JobState::Dead, "lease_losses_exhausted"));
        assert_eq!((job.attempts_used, job.lease_losses), (2, 2));
    })
    .await;
}

#[tokio::test]
async fn a_lease_that_has_run_out_but_was_not_reaped_is_still_settled_by_its_holder() {
    with_scheduler(async |db, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let held = hand.take_one().await;
        expire_newest(db).await;
        assert_eq!(hand.settle(&held, succeeded()).await.verdict(), SettleVerdict::Applied);
        assert_eq!(scheduler.reap().await, (1, 0));
        assert_eq!(scheduler.state(id).await, JobState::Succeeded);
    })
    .await;
}

#[tokio::test]
async fn a_held_lease_that_a_heartbeat_does_not_list_is_taken_back() {
    with_flags(&["--grant-ack-timeout", "200ms"], async |_, scheduler| {
        let ids = scheduler.enqueue_all(vec![job("q", "k"); 2]).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let held = hand.take(2).await;
        // Young leases may have crossed with the heartbeat, so they are left alone.
        hand.hold(&held[..1], Duration::from_millis(700)).await;
        scheduler.reaches(ids[1], JobState::Ready).await;
        let job = scheduler.job(ids[1]).await;
        assert_eq!((job.attempts_used, job.attempts[0].end()), (0, AttemptEnd::Undelivered));
        assert_eq!(scheduler.state(ids[0]).await, JobState::Leased);
        assert_eq!(hand.beat(&held).await.lost, [lease(&held[1])], "and is told so if it lists it later");
        assert_eq!(hand.settle(&held[1], succeeded()).await.verdict(), SettleVerdict::Fenced);
    })
    .await;
}

#[tokio::test]
async fn listed_leases_that_are_not_held_are_reported_lost() {
    with_scheduler(async |_, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let mut other = Hand::open(scheduler, &["q"], &["k"]).await;
        let held = hand.take_one().await;
        let guessed = v1::Grant { token: held.token + 1, ..held.clone() };
        let unknown = v1::Grant { job_id: i64::MAX, token: i64::MAX, ..held.clone() };
        let mut lost = hand.beat(&[held.clone(), guessed.clone(), unknown.clone()]).await.lost;
        lost.sort_by_key(|lease| lease.job_id);
        assert_eq!(lost, [lease(&guessed), lease(&unknown)]);
        assert_eq!(
            other.beat(std::slice::from_ref(&held)).await.lost,
            [lease(&held)],
            "another session's is not its own"
        );
        assert_eq!(scheduler.state(id).await, JobState::Leased);
        assert_eq!(hand.beat(std::slice::from_ref(&held)).await.lost, []);
    })
    .await;
}

#[tokio::test]
async fn a_lease_that_outlives_its_jobs_timeout_by_far_is_taken_back() {
    with_flags(&["--overdue-allowance", "1s"], async |db, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let held = hand.take_one().await;
        let key = queue_core::JobId::try_from(id).expect("positive");
        db.age_lease(key, Duration::from_secs(20)).await;
        assert_eq!(hand.beat(std::slice::from_ref(&held)).await.lost, [], "the allowance");
        db.age_lease(key, Duration::from_secs(2)).await;
        assert_eq!(hand.beat(std::slice::from_ref(&held)).await.lost, [lease(&held)]);
        scheduler.reaches(id, JobState::Scheduled).await;
        let job = scheduler.job(id).await;
        assert_eq!((job.attempts_used, job.attempts[0].end()), (1, AttemptEnd::TimedOut));
        assert_eq!(hand.settle(&held, succeeded()).await.verdict(), SettleVerdict::Fenced);
    })
    .await;
}

#[tokio::test]
async fn a_worker_is_told_to_cancel_what_runs_past_its_timeout_before_it_is_taken_back() {
    with_flags(&["--overdue-allowance", "1m"], async |db, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let held = hand.take_one().await;
        let key = queue_core::JobId::try_from(id).expect("positive");
        db.age_lease(key, Duration::from_secs(40)).await;
        assert_eq!(hand.beat(std::slice::from_ref(&held)).await.lost, []);
        hand.quiet(Duration::from_millis(300)).await;
        db.age_lease(key, Duration::from_secs(15)).await;
        assert_eq!(hand.beat(std::slice::from_ref(&held)).await.lost, []);
        let cancel = |message| if let Response::Cancel(cancel) = message { Ok(cancel) } else { Err(message) };
        assert_eq!(hand.wait(cancel).await.lease, Some(lease(&held)));
        assert_eq!(scheduler.state(id).await, JobState::Leased, "it may still say how it ended");
        assert_eq!(hand.settle(&held, succeeded()).await.verdict(), SettleVerdict::Applied);
    })
    .await;
}

#[tokio::test]
async fn a_progress_that_is_no_fraction_is_ignored_and_the_lease_renewed() {
    with_scheduler(async |_, scheduler| {
        scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let held = hand.take_one().await;
        for progress in [f64::NAN, f64::INFINITY, -1.0, 2.0] {
            let lease = v1::HeldLease { job_id: held.job_id, token: held.token, progress: Some(progress) };
            hand.send(Request::Heartbeat(v1::Heartbeat { sequence: 1, leases: vec![lease] })).await;
            let renewed = |message| if let Response::Renewed(renewed) = message { Ok(renewed) } else { Err(message) };
            assert_eq!(hand.wait(renewed).await.lost, []);
        }
    })
    .await;
}

#[tokio::test]
async fn a_name_identifies_nothing() {
    with_scheduler(async |_, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut first = Hand::open(scheduler, &["q"], &["k"]).await;
        let held = first.take_one().await;
        let mut namesake = Hand::open(scheduler, &["q"], &["k"]).await;
        assert_eq!(namesake.settle(&held, succeeded()).await.verdict(), SettleVerdict::Fenced);
        namesake.beat(&[]).await;
        assert_eq!(scheduler.state(id).await, JobState::Leased);
        assert_eq!(first.settle(&held, succeeded()).await.verdict(), SettleVerdict::Applied);
    })
    .await;
}
