//! Follow-up jobs: they stand or fall with the settlement that enqueues them.

use std::time::Duration;

use queue_core::MAX_FOLLOW_UPS;
use queue_proto::millis;
use queue_proto::v1::new_job::Start;
use queue_proto::v1::settlement::Outcome;
use queue_proto::v1::{self, JobState, SettleVerdict};

use crate::hand::{Hand, failed_for_good};
use crate::setup::{job, keyed, with_scheduler};

fn leading(follow_ups: Vec<v1::NewJob>) -> Outcome {
    let (result, effect) = (Some("result".into()), Some("effect".into()));
    Outcome::Succeeded(v1::Succeeded { result, effect, follow_ups })
}

#[tokio::test]
async fn follow_up_jobs_come_into_being_with_the_success_and_only_once() {
    with_scheduler(async |db, scheduler| {
        let parent = scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q", "next"], &["k"]).await;
        let grant = hand.take_one().await;
        let later = Some(Start::Delay(millis(Duration::from_hours(1))));
        let outcome =
            leading(vec![job("next", "k"), keyed("next", "k", "own"), v1::NewJob { start: later, ..job("next", "k") }]);
        assert_eq!(hand.settle(&grant, outcome.clone()).await.verdict(), SettleVerdict::Applied);
        assert_eq!(hand.settle(&grant, outcome).await.verdict(), SettleVerdict::Duplicate);
        assert_eq!(db.number("select count(*) from fencepost.job").await, 4, "the repetition enqueued nothing");

        let grants = hand.take(2).await;
        let keys: Vec<Option<String>> = grants.iter().map(|grant| grant.idempotency_key.clone()).collect();
        assert_eq!(keys, [Some(format!("follow-up/{parent}/0")), Some("own".to_owned())]);
        for grant in &grants {
            assert_eq!(scheduler.job(grant.job_id).await.parent_job_id, Some(parent));
        }
        assert_eq!(scheduler.stats("next").await.scheduled, 1);
        let job = scheduler.job(parent).await;
        assert_eq!((job.result.as_deref(), job.effect.as_deref()), (Some(&b"result"[..]), Some(&b"effect"[..])));
    })
    .await;
}

#[tokio::test]
async fn a_follow_up_whose_key_has_the_same_content_already_is_that_job() {
    with_scheduler(async |db, scheduler| {
        let existing = keyed("next", "k", "same");
        scheduler.enqueue(existing.clone()).await;
        scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let grant = hand.take_one().await;
        assert_eq!(hand.settle(&grant, leading(vec![existing])).await.verdict(), SettleVerdict::Applied);
        assert_eq!(db.number("select count(*) from fencepost.job").await, 2);
    })
    .await;
}

#[tokio::test]
async fn a_success_with_unacceptable_follow_ups_changes_nothing_and_names_the_field() {
    with_scheduler(async |db, scheduler| {
        scheduler.enqueue(keyed("next", "k", "taken")).await;
        let parent = scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let grant = hand.take_one().await;
        let other = v1::NewJob { payload: "other".into(), ..keyed("next", "k", "taken") };
        let once = keyed("next", "k", "once");
        let twice = v1::NewJob { payload: "other".into(), ..once.clone() };
        let large = v1::NewJob { payload: vec![0; (1 << 20) + 1].into(), ..job("next", "k") };
        let good = || job("next", "k");
        for (field, follow_ups) in [
            ("succeeded.follow_ups[1].idempotency_key: ", vec![good(), other]),
            ("succeeded.follow_ups[1].idempotency_key: ", vec![once, twice]),
            ("succeeded.follow_ups[2].queue: ", vec![good(), good(), job("", "k")]),
            ("succeeded.follow_ups[0].priority: ", vec![v1::NewJob { priority: Some(10), ..good() }]),
            ("succeeded.follow_ups[0].payload: ", vec![large]),
            ("succeeded.follow_ups: ", vec![good(); MAX_FOLLOW_UPS + 1]),
        ] {
            let ack = hand.settle(&grant, leading(follow_ups)).await;
            assert_eq!(ack.verdict(), SettleVerdict::Rejected, "{field}");
            assert!(ack.reason.starts_with(field), "{field}: {}", ack.reason);
            assert_eq!(scheduler.state(parent).await, JobState::Leased);
            assert_eq!(db.number("select count(*) from fencepost.job").await, 2, "{field}: no job");
            assert_eq!(db.number("select count(*) from fencepost.effect").await, 0, "{field}: no effect");
        }
        assert_eq!(hand.settle(&grant, failed_for_good("rejected")).await.verdict(), SettleVerdict::Applied);
        assert_eq!(scheduler.state(parent).await, JobState::Dead);
    })
    .await;
}

#[tokio::test]
async fn as_many_follow_ups_as_allowed_are_granted_to_waiting_workers() {
    with_scheduler(async |_, scheduler| {
        scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let mut waiting = Hand::open(scheduler, &["next"], &["k"]).await;
        waiting.room(100).await;
        let grant = hand.take_one().await;
        let outcome = leading(vec![job("next", "k"); MAX_FOLLOW_UPS]);
        assert_eq!(hand.settle(&grant, outcome).await.verdict(), SettleVerdict::Applied);
        waiting.accept(MAX_FOLLOW_UPS).await;
    })
    .await;
}

#[tokio::test]
async fn a_stale_success_enqueues_nothing() {
    with_scheduler(async |db, scheduler| {
        scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let grant = hand.take_one().await;
        let ack = hand.settle_as(grant.job_id, grant.token + 1, Some(leading(vec![job("next", "k")]))).await;
        assert_eq!(ack.verdict(), SettleVerdict::Fenced);
        assert_eq!(db.number("select count(*) from fencepost.job").await, 1);
    })
    .await;
}
