//! Two schedulers on one database, for real.

use std::time::Duration;

use queue_proto::v1::queue_service_client::QueueServiceClient;
use queue_proto::v1::work_request::Message as Request;
use queue_proto::v1::{self, AttemptEnd, JobState, SettleVerdict};
use testbed::{TestDatabase, db_test, eventually};
use tokio::time::Instant;
use tonic::Code;

use crate::hand::{Hand, lease, settlement, succeeded};
use crate::proxy::{Network, Proxy};
use crate::setup::{PATIENCE, Scheduler, channel, job, keyed};

async fn with_two(flags: &[&str], test: impl AsyncFnOnce(&TestDatabase, Scheduler, Scheduler)) {
    db_test(async |db| {
        let (first, second) = (Scheduler::start(&db.url(), flags).await, Scheduler::start(&db.url(), flags).await);
        let heard =
            async || db.number("select count(*) from fencepost.scheduler where beat_at > resumed_at").await == 2;
        eventually(PATIENCE, "both beat", heard).await;
        test(db, first, second).await;
    })
    .await;
}

#[tokio::test]
async fn what_one_enqueues_the_other_grants_at_once_by_a_hint() {
    with_two(&[], async |_, first, second| {
        let mut hand = Hand::open(&second, &["q"], &["k"]).await;
        hand.room(20).await;
        // The listener may have to learn the lane first.
        let id = first.enqueue(job("q", "k")).await;
        assert_eq!(hand.accept(1).await[0].job_id, id);
        let start = Instant::now();
        for _ in 0..10 {
            let id = first.enqueue(job("q", "k")).await;
            let grants = hand.grants(1).await;
            assert_eq!(grants[0].job_id, id);
            hand.acknowledge(&grants).await;
        }
        // The slow look alone would take a second each on the average.
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    })
    .await;
}

#[tokio::test]
async fn without_hints_the_slow_look_finds_what_the_other_enqueued() {
    with_two(&["--no-hints"], async |_, first, second| {
        let mut hand = Hand::open(&second, &["q"], &["k", "late"]).await;
        hand.room(20).await;
        // A lane that the second has never heard of, then one that it knows, then one that is new beside it.
        for kind in ["k", "k", "late"] {
            let start = Instant::now();
            let id = first.enqueue(job("q", kind)).await;
            let grants = hand.grants(1).await;
            assert_eq!(grants[0].job_id, id);
            assert!(start.elapsed() < Duration::from_secs(4), "within two seconds and some: {:?}", start.elapsed());
            hand.settle(&grants[0], succeeded()).await;
        }
    })
    .await;
}

#[tokio::test]
async fn hints_that_get_lost_with_the_listeners_connection_lose_no_job() {
    with_two(&[], async |db, first, second| {
        let mut hand = Hand::open(&second, &["q"], &["k"]).await;
        hand.room(20).await;
        for _ in 0..3 {
            db.run("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query like 'LISTEN%'").await;
            let id = first.enqueue(job("q", "k")).await;
            let grants = hand.grants(1).await;
            assert_eq!(grants[0].job_id, id);
            hand.acknowledge(&grants).await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_enqueue_whose_answer_died_with_its_scheduler_is_the_same_job_at_the_other() {
    with_two(&[], async |db, mut first, second| {
        let proxy = Proxy::start(first.address.to_string(), Network::Whole).await;
        let mut client = QueueServiceClient::new(channel(proxy.address));
        let request = || v1::EnqueueRequest { job: Some(keyed("q", "k", "once")) };
        client.get_queue_stats(v1::GetQueueStatsRequest::default()).await.expect("connects");
        proxy.become_(Network::Deaf);
        let call = tokio::spawn(async move { client.enqueue(request()).await });
        eventually(PATIENCE, "committed", async || db.number("select count(*) from fencepost.job").await == 1).await;
        assert!(!call.is_finished(), "and not answered");
        first.process.kill();
        drop(proxy);
        let answer = call.await.expect("no panic");
        assert!(answer.is_err(), "the caller does not know: {answer:?}");
        let again = second.try_enqueue(keyed("q", "k", "once")).await.expect("answers");
        assert!(again.duplicate);
        assert_eq!(again.job_id, db.number("select job_id from fencepost.job").await);
        let mut hand = Hand::open(&second, &["q"], &["k"]).await;
        assert_eq!(hand.take_one().await.job_id, again.job_id);
    })
    .await;
}

#[tokio::test]
async fn a_settlement_whose_answer_died_with_its_scheduler_is_a_duplicate_at_the_other() {
    with_two(&[], async |db, mut first, second| {
        let proxy = Proxy::start(first.address.to_string(), Network::Whole).await;
        first.enqueue_all(vec![job("q", "k"); 2]).await;
        let direct = std::mem::replace(&mut first.address, proxy.address);
        let mut hand = Hand::open(&first, &["q"], &["k"]).await;
        first.address = direct;
        let held = hand.take(2).await;
        proxy.become_(Network::Deaf);
        hand.post(vec![settlement(&held[0], succeeded())]).await;
        eventually(PATIENCE, "committed", async || db.number("select count(*) from fencepost.finished").await == 1)
            .await;
        first.process.kill();
        let mut hand = hand.again(&second, &held).await.expect("moves");
        assert_eq!(hand.welcome.lost, [lease(&held[0])]);
        assert_eq!(hand.settle(&held[0], succeeded()).await.verdict(), SettleVerdict::Duplicate);
        assert_eq!(hand.settle(&held[1], succeeded()).await.verdict(), SettleVerdict::Applied);
        assert_eq!(second.stats("q").await.succeeded, 2);
    })
    .await;
}

#[tokio::test]
async fn running_jobs_move_from_a_killed_scheduler_to_the_other() {
    with_two(&[], async |_, mut first, second| {
        let ids = first.enqueue_all(vec![job("q", "k"); 50]).await;
        let mut hand = Hand::open(&first, &["q"], &["k"]).await;
        let held = hand.take(30).await;
        first.process.kill();
        let ended = hand.end().await;
        assert!(ended.is_some(), "the stream breaks");
        let mut hand = hand.again(&second, &held).await.expect("moves");
        assert_eq!(hand.welcome.lost, []);
        let rest = hand.take(20).await;
        let all: Vec<v1::Grant> = held.into_iter().chain(rest).collect();
        hand.post(all.iter().map(|grant| settlement(grant, succeeded())).collect()).await;
        assert!(hand.acks(50).await.iter().all(|ack| ack.verdict() == SettleVerdict::Applied));
        for id in ids {
            assert_eq!(second.job(id).await.attempts.len(), 1, "each ran once");
        }
    })
    .await;
}

#[tokio::test]
async fn grants_that_died_between_claim_and_send_go_back_when_the_worker_moves() {
    with_two(&[], async |_, mut first, second| {
        let proxy = Proxy::start(first.address.to_string(), Network::Whole).await;
        let direct = std::mem::replace(&mut first.address, proxy.address);
        let mut hand = Hand::open(&first, &["q"], &["k"]).await;
        first.address = direct;
        // It has shown that it acknowledges, so all its credits count.
        first.enqueue(job("q", "k")).await;
        let done = hand.take_one().await;
        hand.settle(&done, succeeded()).await;
        proxy.become_(Network::Deaf);
        hand.room(3).await;
        let ids = first.enqueue_all(vec![job("q", "k"); 3]).await;
        eventually(PATIENCE, "claimed", async || second.stats("q").await.leased == 3).await;
        first.process.kill();
        let mut hand = hand.again(&second, &[]).await.expect("moves");
        let grants = hand.take(3).await;
        assert_eq!(grants.iter().map(|grant| grant.job_id).collect::<Vec<_>>(), ids);
        let job = second.job(ids[0]).await;
        assert_eq!((job.attempts_used, job.attempts[0].end()), (0, AttemptEnd::Undelivered));
    })
    .await;
}

#[tokio::test]
async fn an_old_owner_that_acts_after_it_was_replaced_changes_nothing() {
    with_two(&["--grant-ack-timeout", "500ms"], async |db, first, second| {
        let ids = first.enqueue_all(vec![job("q", "k"); 2]).await;
        let mut stale = Hand::open(&first, &["q"], &["k"]).await;
        // The old owner has a grant whose acknowledgement it waits for, free slots, and a heartbeat on its way.
        stale.room(10).await;
        let mut held = stale.accept(1).await;
        held.extend(stale.grants(1).await);
        first.process.freeze();
        stale.pulse(&[]).await;
        let mut hand = stale.again(&second, &held).await.expect("moves");
        assert_eq!(hand.beat(&held).await.lost, []);
        let new = second.enqueue_all(vec![job("q", "k"); 5]).await;
        let before = db.number("select last_value from fencepost.token_seq").await;
        first.process.thaw();
        // A process takes a moment to stop: the first heartbeat may have been in time.
        stale.pulse(&[]).await;
        // It takes its grants back, renews, and claims for the session, all in vain.
        let (ended, ()) = tokio::join!(stale.end(), hand.hold(&held, Duration::from_secs(2)));
        let ended = ended.expect("an error");
        assert_eq!(ended.code(), Code::Aborted, "{ended}");
        for id in &ids {
            let job = second.job(*id).await;
            assert_eq!((job.state(), job.attempts.len()), (JobState::Leased, 0));
        }
        for id in &new {
            assert_eq!(second.state(*id).await, JobState::Ready, "nothing was claimed for a stream that is no more");
        }
        assert_eq!(db.number("select last_value from fencepost.token_seq").await, before);
        let took = hand.take(5).await;
        assert_eq!(took.len(), 5);
        assert_eq!(hand.settle(&held[0], succeeded()).await.verdict(), SettleVerdict::Applied);
    })
    .await;
}

#[tokio::test]
async fn an_old_owner_does_not_claim_in_circles_for_a_session_that_has_moved() {
    with_two(&[], async |db, first, second| {
        let mut stale = Hand::open(&first, &["q"], &["k"]).await;
        stale.room(10).await;
        let mut hand = stale.again(&second, &[]).await.expect("moves");
        // Jobs that only the stale stream's slots could take, as far as the first knows.
        first.enqueue_all(vec![job("q", "k"); 5]).await;
        let commits = "select xact_commit::bigint from pg_stat_database where datname = current_database()";
        let before = db.number(commits).await;
        let span = Duration::from_secs(2);
        let end = Instant::now() + span;
        while Instant::now() < end {
            stale.send(Request::Ping(v1::Ping {})).await;
            hand.beat(&[]).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let rate = (db.number(commits).await - before) / 2;
        assert!(rate < 150, "{rate} commits a second of two idle schedulers");
    })
    .await;
}

#[tokio::test]
async fn another_scheduler_reaps_what_a_dead_one_left() {
    with_two(&[], async |db, mut first, second| {
        let id = first.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(&first, &["q"], &["k"]).await;
        hand.take_one().await;
        first.process.kill();
        hand.close();
        db.expire_session(db.number("select max(session_no) from fencepost.worker_session").await).await;
        db.end_grace().await;
        assert_eq!(second.reap().await, (1, 1));
        let mut hand = Hand::open(&second, &["q"], &["k"]).await;
        let grant = hand.take_one().await;
        assert_eq!((grant.job_id, grant.attempt), (id, 2));
    })
    .await;
}
