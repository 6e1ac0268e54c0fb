//! From the producer to the handler: what is enqueued arrives, when it is due.

use std::collections::HashMap;
use std::time::Duration;

use queue_proto::v1::new_job::Start;
use queue_proto::v1::{self, JobState};
use queue_proto::{millis, to_timestamp};
use testbed::eventually;
use tonic::metadata::MetadataValue;

use crate::hand::{Hand, succeeded};
use crate::setup::{PATIENCE, Scheduler, job, keyed, with_scheduler};

#[tokio::test]
async fn a_grant_carries_all_that_was_enqueued() {
    with_scheduler(async |_, scheduler| {
        let new = v1::NewJob {
            payload: vec![0, 1, 2, 255].into(),
            headers: HashMap::from([("locale".to_owned(), "dé".to_owned()), ("empty".to_owned(), String::new())]),
            timeout: Some(millis(Duration::from_millis(1_500))),
            retry: Some(v1::RetryPolicy { max_attempts: Some(7), ..v1::RetryPolicy::default() }),
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
            ..keyed("mail/eu", "send:welcome", "welcome-7")
        };
        let id = scheduler.enqueue(new.clone()).await;
        let grant = Hand::open(scheduler, &["mail/eu"], &["send:welcome"]).await.take_one().await;
        assert_eq!((grant.job_id, grant.attempt, grant.max_attempts), (id, 1, 7));
        assert!(grant.token > 0);
        assert_eq!((&grant.queue, &grant.kind), (&new.queue, &new.kind));
        assert_eq!((&grant.payload, &grant.headers), (&new.payload, &new.headers));
        assert_eq!((&grant.idempotency_key, &grant.traceparent), (&new.idempotency_key, &new.traceparent));
        assert_eq!((grant.timeout, grant.lease_ttl), (new.timeout, Some(millis(Duration::from_secs(10)))));
    })
    .await;
}

#[tokio::test]
async fn the_trace_context_of_the_call_goes_with_the_job_unless_it_has_its_own() {
    with_scheduler(async |_, scheduler| {
        let caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let with_context = |jobs: Vec<v1::NewJob>, context: &str| {
            let mut request = tonic::Request::new(v1::EnqueueBatchRequest { jobs });
            let value = MetadataValue::try_from(context).expect("a header");
            request.metadata_mut().insert("traceparent", value);
            request
        };
        let other = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        let own = v1::NewJob { traceparent: Some(other.to_owned()), ..job("q", "k") };
        let jobs = vec![job("q", "k"), own];
        scheduler.queue().enqueue_batch(with_context(jobs, caller)).await.expect("stored");
        scheduler.queue().enqueue_batch(with_context(vec![job("q", "k")], "nonsense")).await.expect("stored");
        scheduler.enqueue(job("q", "k")).await;
        let grants = Hand::open(scheduler, &["q"], &["k"]).await.take(4).await;
        let contexts: Vec<Option<&str>> = grants.iter().map(|grant| grant.traceparent.as_deref()).collect();
        assert_eq!(contexts, [Some(caller), Some(other), None, None]);
    })
    .await;
}

#[tokio::test]
async fn queues_and_kinds_come_into_being_with_their_first_job() {
    with_scheduler(async |_, scheduler| {
        // The worker is there before anything it listens to.
        let mut hand = Hand::open(scheduler, &["new", "never"], &["fresh"]).await;
        hand.room(1).await;
        let none = v1::GetQueueStatsRequest { queues: vec!["new".to_owned()] };
        assert!(scheduler.queue().get_queue_stats(none).await.expect("answers").into_inner().queues.is_empty());
        let id = scheduler.enqueue(job("new", "fresh")).await;
        let grant = hand.grants(1).await.remove(0);
        assert_eq!(grant.job_id, id);
        hand.settle(&grant, succeeded()).await;
        assert_eq!(scheduler.stats("new").await.succeeded, 1);
    })
    .await;
}

#[tokio::test]
async fn jobs_for_later_wait_and_are_granted_when_they_are_due() {
    with_scheduler(async |db, scheduler| {
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        hand.room(10).await;
        let in_an_hour = v1::NewJob { start: Some(Start::Delay(millis(Duration::from_hours(1)))), ..job("q", "k") };
        let later = scheduler.enqueue(in_an_hour).await;
        let stored = scheduler.job(later).await;
        assert_eq!(stored.state(), JobState::Scheduled);
        let (due, enqueued) = (stored.due_at.expect("due"), stored.enqueued_at.expect("enqueued"));
        assert_eq!(due.seconds - enqueued.seconds, 3_600);

        let soon = v1::NewJob { start: Some(Start::Delay(millis(Duration::from_millis(300)))), ..job("q", "k") };
        let soon = scheduler.enqueue(soon).await;
        let grant = hand.accept(1).await.remove(0);
        assert_eq!(grant.job_id, soon);
        assert_eq!(scheduler.state(later).await, JobState::Scheduled);
        hand.settle(&grant, succeeded()).await;

        db.make_due().await;
        let grant = hand.accept(1).await.remove(0);
        assert_eq!((grant.job_id, grant.attempt), (later, 1));
        hand.settle(&grant, succeeded()).await;

        let past = v1::NewJob { start: Some(Start::RunAt(to_timestamp(0))), ..job("q", "k") };
        let past = scheduler.enqueue(past).await;
        assert_eq!(hand.accept(1).await.remove(0).job_id, past);
    })
    .await;
}

#[tokio::test]
async fn what_one_scheduler_stores_for_later_another_promotes() {
    with_scheduler(async |db, first| {
        let mut second = Scheduler::start(&db.url(), &[]).await;
        let delayed = v1::NewJob { start: Some(Start::Delay(millis(Duration::from_millis(500)))), ..job("q", "k") };
        let id = second.enqueue(delayed).await;
        second.process.kill();
        let mut hand = Hand::open(first, &["q"], &["k"]).await;
        let grant = hand.take_one().await;
        assert_eq!(grant.job_id, id);
        eventually(PATIENCE, "leased", async || first.state(id).await == JobState::Leased).await;
    })
    .await;
}
