//! Looking: what GetJob and the statistics show is what the tables hold.

use std::time::Duration;

use queue_proto::millis;
use queue_proto::v1::new_job::Start;
use queue_proto::v1::{self, AttemptEnd, JobState};

use crate::hand::{Hand, failed_for_good, succeeded};
use crate::setup::{job, keyed, with_scheduler};

#[tokio::test]
async fn statistics_equal_the_tables_in_every_state() {
    with_scheduler(async |db, scheduler| {
        let mut hand = Hand::open(scheduler, &["busy"], &["k"]).await;
        scheduler.enqueue_all(vec![job("busy", "k"); 7]).await;
        let later = v1::NewJob { start: Some(Start::Delay(millis(Duration::from_hours(1)))), ..job("busy", "k") };
        scheduler.enqueue_all(vec![later; 3]).await;
        scheduler.enqueue(job("idle", "k")).await;
        let grants = hand.take(4).await;
        hand.settle(&grants[0], succeeded()).await;
        hand.settle(&grants[1], failed_for_good("no")).await;

        let busy = scheduler.stats("busy").await;
        assert_eq!((busy.scheduled, busy.ready, busy.leased), (3, 3, 2));
        assert_eq!((busy.succeeded, busy.dead, busy.cancelled), (1, 1, 0));
        assert!(busy.oldest_ready_age.is_some());
        for (state, count) in [
            ("select count(*) from fencepost.job_status where queue = 'busy' and state = 'scheduled'", busy.scheduled),
            ("select count(*) from fencepost.job_status where queue = 'busy' and state = 'ready'", busy.ready),
            ("select count(*) from fencepost.job_status where queue = 'busy' and state = 'leased'", busy.leased),
            ("select count(*) from fencepost.job_status where queue = 'busy' and state = 'succeeded'", busy.succeeded),
            ("select count(*) from fencepost.job_status where queue = 'busy' and state = 'dead'", busy.dead),
        ] {
            assert_eq!(db.number(state).await, count, "{state}");
        }
        let all = scheduler.queue().get_queue_stats(v1::GetQueueStatsRequest::default()).await.expect("answers");
        let all: Vec<(String, i64)> =
            all.into_inner().queues.into_iter().map(|stats| (stats.queue, stats.ready)).collect();
        assert_eq!(all, [("busy".to_owned(), 3), ("idle".to_owned(), 1)], "in the order of names");
        let rest = hand.take(3).await;
        assert_eq!(scheduler.stats("busy").await.oldest_ready_age, None, "none is ready");
        assert_eq!(rest.len(), 3);
    })
    .await;
}

#[tokio::test]
async fn a_job_shows_its_whole_life() {
    with_scheduler(async |_, scheduler| {
        let id = scheduler.enqueue(keyed("q", "k", "life")).await;
        let ready = scheduler.job(id).await;
        assert_eq!((ready.job_id, ready.state(), ready.attempts.len()), (id, JobState::Ready, 0));
        assert_eq!((ready.due_at, ready.finished_at, ready.parent_job_id), (None, None, None));

        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let grant = hand.take_one().await;
        let leased = scheduler.job(id).await;
        assert_eq!((leased.state(), leased.attempts_used, leased.attempts.len()), (JobState::Leased, 0, 0));

        hand.settle(&grant, succeeded()).await;
        let done = scheduler.job(id).await;
        assert_eq!((done.state(), done.attempts_used, done.attempts.len()), (JobState::Succeeded, 0, 1));
        let attempt = &done.attempts[0];
        assert_eq!((attempt.number, attempt.token, attempt.end()), (1, grant.token, AttemptEnd::Succeeded));
        assert_eq!(attempt.worker, "hand");
        let order = [done.enqueued_at, attempt.started_at, attempt.ended_at, done.finished_at]
            .map(|time| time.map(|time| (time.seconds, time.nanos)).expect("a time"));
        assert!(order.is_sorted(), "{order:?}");
        assert_eq!((done.result, done.effect), (None, None));
    })
    .await;
}
