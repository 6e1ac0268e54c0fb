//! A session outlives its streams.

use std::time::Duration;

use queue_proto::v1::work_request::Message as Request;
use queue_proto::v1::{self, AttemptEnd, JobState, SettleVerdict};
use tonic::Code;

use crate::hand::{Hand, failed, lease, succeeded};
use crate::setup::{Scheduler, job, with_flags, with_scheduler};

#[tokio::test]
async fn a_worker_that_reconnects_keeps_its_leases() {
    with_scheduler(async |db, scheduler| {
        let second = Scheduler::start(&db.url(), &[]).await;
        let ids = scheduler.enqueue_all(vec![job("q", "k"); 4]).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let held = hand.take(4).await;
        hand.settle(&held[3], succeeded()).await;
        // The answer to the settlement was lost, so it is still listed; one lease was forgotten.
        let listed = [held[0].clone(), held[1].clone(), held[3].clone()];
        for scheduler in [scheduler, &second] {
            hand = hand.again(scheduler, &listed).await.expect("re-opens");
            assert_eq!(hand.welcome.lost, [lease(&held[3])], "settled before");
            assert_eq!(hand.beat(&listed[..2]).await.lost, []);
        }
        assert_eq!(hand.settle(&held[3], succeeded()).await.verdict(), SettleVerdict::Duplicate);
        assert_eq!(hand.settle(&held[0], succeeded()).await.verdict(), SettleVerdict::Applied);
        assert_eq!(hand.settle(&held[1], failed("no")).await.verdict(), SettleVerdict::Applied);
        scheduler.reaches(ids[2], JobState::Ready).await;
        let forgotten = scheduler.job(ids[2]).await;
        assert_eq!((forgotten.attempts_used, forgotten.attempts[0].end()), (0, AttemptEnd::Undelivered));
        for id in &ids[..2] {
            assert_eq!(scheduler.job(*id).await.attempts.len(), 1, "each ran once");
        }
    })
    .await;
}

#[tokio::test]
async fn a_new_stream_starts_without_credits() {
    with_scheduler(async |_, scheduler| {
        let mut first = Hand::open(scheduler, &["q"], &["k"]).await;
        first.room(5).await;
        let mut second = first.again(scheduler, &[]).await.expect("re-opens");
        first.close();
        scheduler.enqueue(job("q", "k")).await;
        second.quiet(Duration::from_millis(300)).await;
        assert_eq!(second.take(1).await.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_second_stream_replaces_the_first_and_the_first_cannot_touch_it() {
    with_flags(&["--grant-ack-timeout", "200ms"], async |_, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut first = Hand::open(scheduler, &["q"], &["k"]).await;
        first.room(5).await;
        let held = first.grants(1).await;
        let mut second = first.again(scheduler, &held).await.expect("re-opens");
        // The first stream never saw an acknowledgement: its deadline passes and must change nothing.
        second.hold(&held, Duration::from_millis(600)).await;
        assert_eq!(scheduler.state(id).await, JobState::Leased);
        // Neither do a farewell and a heartbeat of the first one that lists nothing.
        first.pulse(&[]).await;
        first.send(Request::Bye(v1::Bye {})).await;
        let ended = first.end().await;
        assert!(ended.is_none_or(|status| status.code() == Code::Aborted));
        assert_eq!(second.beat(&held).await.lost, []);
        scheduler.enqueue(job("q", "k")).await;
        assert_eq!(second.take(1).await.len(), 1, "it has its seat");
        assert_eq!(second.settle(&held[0], succeeded()).await.verdict(), SettleVerdict::Applied);
    })
    .await;
}

#[tokio::test]
async fn a_replaced_stream_is_told_so() {
    with_scheduler(async |_, scheduler| {
        let mut first = Hand::open(scheduler, &["q"], &["k"]).await;
        let _second = first.again(scheduler, &[]).await.expect("re-opens");
        first.pulse(&[]).await;
        assert_eq!(first.end().await.expect("an error").code(), Code::Aborted);
    })
    .await;
}

#[tokio::test]
async fn a_replaced_stream_that_only_pings_ends_at_once() {
    with_scheduler(async |_, scheduler| {
        for draining in [false, true] {
            let mut first = Hand::open(scheduler, &["q"], &["k"]).await;
            if draining {
                first.send(Request::Draining(v1::Draining {})).await;
            }
            first.send(Request::Ping(v1::Ping {})).await;
            let mut second = first.again(scheduler, &[]).await.expect("re-opens");
            let replaced = tokio::time::Instant::now();
            assert_eq!(first.end().await.expect("an error").code(), Code::Aborted);
            assert!(replaced.elapsed() < Duration::from_secs(3), "well before it counts as silent");
            assert_eq!(second.beat(&[]).await.lost, [], "the new one lives");
        }
    })
    .await;
}

#[tokio::test]
async fn closing_a_stream_revokes_nothing() {
    with_scheduler(async |_, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut first = Hand::open(scheduler, &["q"], &["k"]).await;
        let held = first.take(1).await;
        let hello = first.hello.clone();
        first.close();
        let mut other = Hand::open(scheduler, &["q"], &["k"]).await;
        other.room(1).await;
        other.quiet(Duration::from_millis(500)).await;
        assert_eq!(scheduler.state(id).await, JobState::Leased);
        let leases = vec![lease(&held[0])];
        let mut again = Hand::with(scheduler, v1::Hello { leases, ..hello }).await.expect("re-opens");
        assert_eq!(again.settle(&held[0], succeeded()).await.verdict(), SettleVerdict::Applied);
    })
    .await;
}

#[tokio::test]
async fn a_farewell_releases_at_once_and_ends_the_session() {
    with_scheduler(async |_, scheduler| {
        let ids = scheduler.enqueue_all(vec![job("q", "k"); 3]).await;
        let mut leaving = Hand::open(scheduler, &["q"], &["k"]).await;
        let held = leaving.take(2).await;
        let mut waiting = Hand::open(scheduler, &["q"], &["k"]).await;
        leaving.send(Request::Bye(v1::Bye {})).await;
        assert!(leaving.end().await.is_none(), "a farewell is no error");
        let grants = waiting.take(3).await;
        let mut got: Vec<i64> = grants.iter().map(|grant| grant.job_id).collect();
        got.sort_unstable();
        assert_eq!(got, ids);
        let job = scheduler.job(ids[0]).await;
        assert_eq!((job.attempts_used, job.attempts[0].end()), (0, AttemptEnd::Released));
        let refused = leaving.again(scheduler, &held).await.err().expect("the session is over");
        assert_eq!(refused.code(), Code::FailedPrecondition);
    })
    .await;
}
