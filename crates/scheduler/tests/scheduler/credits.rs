//! Who is granted what: credits, queues in their order, priorities, kinds.

use std::time::Duration;

use queue_proto::v1;
use queue_proto::v1::work_request::Message as Request;

use crate::hand::{Hand, settlement, succeeded};
use crate::setup::{job, with_scheduler};

/// Long against the time of a claim.
const A_WHILE: Duration = Duration::from_millis(300);

fn prior(queue: &str, priority: i32) -> v1::NewJob {
    v1::NewJob { priority: Some(priority), ..job(queue, "k") }
}

#[tokio::test]
async fn credits_are_never_exceeded_and_repeated_or_decreasing_ones_change_nothing() {
    with_scheduler(async |db, scheduler| {
        let leases = async || db.number("select count(*) from fencepost.lease").await;
        scheduler.enqueue_all(vec![job("q", "k"); 20]).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        hand.quiet(A_WHILE).await;
        assert_eq!(leases().await, 0, "nothing without credit");

        let credit = |total| Request::Credit(v1::Credit { total });
        hand.send(credit(3)).await;
        let mut held = hand.accept(3).await;
        for total in [3, 1, 0, 3] {
            hand.send(credit(total)).await;
        }
        hand.beat(&held).await;
        hand.quiet(A_WHILE).await;
        assert_eq!(leases().await, 3);

        hand.settle(&held.remove(0), succeeded()).await;
        hand.quiet(A_WHILE).await;
        assert_eq!(leases().await, 2, "a settlement is no credit");

        hand.send(credit(5)).await;
        held.extend(hand.accept(2).await);
        hand.quiet(A_WHILE).await;
        assert_eq!(leases().await, 4);

        hand.send(credit(u64::MAX)).await;
        held.extend(hand.accept(15).await);
        assert_eq!(leases().await, 19, "all there are");
        let late = scheduler.enqueue(job("q", "k")).await;
        assert_eq!(hand.grants(1).await[0].job_id, late);
    })
    .await;
}

#[tokio::test]
async fn queues_go_in_the_workers_order_and_priorities_within_a_queue() {
    with_scheduler(async |_, scheduler| {
        let jobs = vec![
            prior("second", 9),
            prior("first", 0),
            prior("first", 4),
            prior("first", 9),
            prior("first", 4),
            prior("second", 0),
            prior("first", 9),
        ];
        let ids = scheduler.enqueue_all(jobs).await;
        let mut hand = Hand::open(scheduler, &["first", "second"], &["k"]).await;
        let mut order = Vec::new();
        for _ in 0..ids.len() {
            let grant = hand.take_one().await;
            order.push(ids.iter().position(|id| *id == grant.job_id).expect("one of them"));
            hand.settle(&grant, succeeded()).await;
        }
        assert_eq!(order, [3, 6, 2, 4, 1, 0, 5]);
    })
    .await;
}

#[tokio::test]
async fn an_unknown_kind_is_never_granted_and_hides_nothing_behind_it() {
    with_scheduler(async |db, scheduler| {
        let unknown = v1::NewJob { priority: Some(9), ..job("q", "unknown") };
        scheduler.enqueue_all(vec![unknown.clone(); 600]).await;
        scheduler.enqueue_all(vec![job("other", "k"); 5]).await;
        let known = scheduler.enqueue(prior("q", 0)).await;
        scheduler.enqueue_all(vec![unknown; 600]).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k", "also"]).await;
        hand.room(50).await;
        let grant = hand.grants(1).await.remove(0);
        assert_eq!(grant.job_id, known);
        hand.settle(&grant, succeeded()).await;
        hand.quiet(A_WHILE).await;
        assert_eq!(db.number("select count(*) from fencepost.ready").await, 1_205);
    })
    .await;
}

#[tokio::test]
async fn jobs_are_dealt_out_over_the_workers_that_have_room() {
    with_scheduler(async |_, scheduler| {
        let mut hands = Vec::new();
        for _ in 0..4 {
            let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
            hand.room(10).await;
            hands.push(hand);
        }
        scheduler.enqueue_all(vec![job("q", "k"); 40]).await;
        let mut seen = std::collections::BTreeSet::new();
        for hand in &mut hands {
            let grants = hand.accept(10).await;
            hand.post(grants.iter().map(|grant| settlement(grant, succeeded())).collect()).await;
            let acks = hand.acks(10).await;
            assert!(acks.iter().all(|ack| ack.verdict() == v1::SettleVerdict::Applied));
            seen.extend(grants.iter().map(|grant| grant.job_id));
        }
        assert_eq!(seen.len(), 40, "each job once");
    })
    .await;
}

#[tokio::test]
async fn a_draining_worker_gets_no_more_but_may_settle_what_it_holds() {
    with_scheduler(async |_, scheduler| {
        let mut draining = Hand::open(scheduler, &["q"], &["k"]).await;
        scheduler.enqueue(job("q", "k")).await;
        let held = draining.take(1).await;
        draining.room(10).await;
        draining.send(Request::Draining(v1::Draining {})).await;
        draining.beat(&held).await;
        let id = scheduler.enqueue(job("q", "k")).await;
        draining.room(10).await;
        let mut other = Hand::open(scheduler, &["q"], &["k"]).await;
        assert_eq!(other.take_one().await.job_id, id);
        scheduler.enqueue(job("q", "k")).await;
        draining.quiet(A_WHILE).await;
        assert_eq!(draining.beat(&held).await.lost, []);
        assert_eq!(draining.settle(&held[0], succeeded()).await.verdict(), v1::SettleVerdict::Applied);
    })
    .await;
}
