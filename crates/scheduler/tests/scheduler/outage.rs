//! The database goes away and comes back.

use std::time::Duration;

use queue_proto::v1::enqueue_result::Result as Answer;
use queue_proto::v1::{self, JobState, SettleVerdict};
use testbed::{TestDatabase, db_test, eventually, free_address};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;

use crate::hand::{Hand, settlement, succeeded};
use crate::proxy::{Network, Proxy};
use crate::services::health;
use crate::setup::{PATIENCE, SHORT, Scheduler, job, keyed};

/// Longer than the session's time, so that every lease would have been lost.
const OUTAGE: Duration = Duration::from_secs(4);
/// The bounds on connecting, acquiring and one statement, and room for a busy machine.
const BOUND: Duration = Duration::from_secs(4);

async fn ready(address: &str) -> bool {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer.starts_with("HTTP/1.1 200"))
    };
    asked.await.expect("the endpoint answers")
}

/// How many lines the process wrote that are not about ordinary things. The pool writes one for each connection that broke.
fn complaints(scheduler: &Scheduler) -> usize {
    let loud =
        |line: &&String| (line.contains("\"WARN\"") || line.contains("\"ERROR\"")) && !line.contains("sqlx_core::pool");
    scheduler.process.log().iter().filter(loud).count()
}

/// What an outage must look like, whatever kind of network it is.
async fn outage(db: &TestDatabase, network: Network) {
    let (proxy, url) = Proxy::of_database(&db.url(), Network::Whole).await;
    let metrics = free_address().to_string();
    let mut scheduler = Scheduler::start(&url, &["--metrics-listen", &metrics, SHORT[0], SHORT[1]]).await;
    let ids = scheduler.enqueue_all(vec![job("q", "k"); 3]).await;
    let mut hand = Hand::open(&scheduler, &["q"], &["k"]).await;
    let held = hand.take(2).await;
    hand.room(1).await;
    let third = hand.grants(1).await.remove(0);
    hand.acknowledge(std::slice::from_ref(&third)).await;
    hand.beat(&[held[0].clone(), held[1].clone(), third.clone()]).await;
    db.end_grace().await;
    let before = complaints(&scheduler);

    let start = Instant::now();
    proxy.become_(network);
    let refused = scheduler.try_enqueue(keyed("q", "k", "during")).await.expect_err("no database");
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(start.elapsed() < BOUND, "bounded: {:?}", start.elapsed());
    assert!(!refused.message().contains("postgres"), "says nothing of the inside: {refused}");
    hand.pulse(&held).await;
    let asked = Instant::now();
    let refused = scheduler.queue().get_job(v1::GetJobRequest { job_id: ids[0] }).await.expect_err("no database");
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(asked.elapsed() < BOUND, "bounded: {:?}", asked.elapsed());
    hand.pulse(&held).await;
    let asked = Instant::now();
    let news = scheduler.batch((0..20).map(|n| job("q", &format!("new-{n}"))).collect()).await;
    assert!(
        news.iter().all(|answer| matches!(answer, Answer::Error(error) if error.code == i32::from(Code::Unavailable)))
    );
    assert!(asked.elapsed() < BOUND, "bounded, however many kinds are new: {:?}", asked.elapsed());
    hand.post(vec![settlement(&held[0], succeeded())]).await;
    eventually(PATIENCE, "not serving", async || health(&scheduler, "").await == Ok(ServingStatus::NotServing)).await;
    assert!(!ready(&metrics).await);
    while start.elapsed() < OUTAGE {
        // Kept, and told nothing that is not true: no renewal, no settlement.
        hand.pulse(&held).await;
        hand.quiet(Duration::from_millis(500)).await;
    }
    let lines = complaints(&scheduler) - before;
    let seconds = usize::try_from(start.elapsed().as_secs()).expect("few");
    assert!(lines <= seconds + 2, "{lines} lines in {seconds} s: {:#?}", scheduler.process.log());

    proxy.become_(Network::Whole);
    let ack = hand.acks(1).await.remove(0);
    assert_eq!((ack.job_id, ack.verdict()), (held[0].job_id, SettleVerdict::Applied));
    eventually(PATIENCE, "serving", async || health(&scheduler, "").await == Ok(ServingStatus::Serving)).await;
    assert!(ready(&metrics).await);
    assert_eq!(scheduler.reap().await, (0, 0), "no session is expired for an outage");
    let rest = [held[1].clone(), third];
    assert_eq!(hand.beat(&rest).await.lost, []);
    assert_eq!(hand.settle(&rest[0], succeeded()).await.verdict(), SettleVerdict::Applied);
    assert_eq!(scheduler.state(ids[2]).await, JobState::Leased);
    let id = scheduler.try_enqueue(keyed("q", "k", "during")).await.expect("stored").job_id;
    assert_eq!(hand.take_one().await.job_id, id);
    assert!(scheduler.process.is_running());
}

#[tokio::test]
async fn a_database_that_refuses_connections_is_survived() {
    db_test(async |db| outage(db, Network::Cut).await).await;
}

#[tokio::test]
async fn a_database_that_no_packet_reaches_is_survived() {
    db_test(async |db| outage(db, Network::Silent).await).await;
}

#[tokio::test]
async fn a_stop_while_the_database_is_away_is_bounded() {
    db_test(async |db| {
        let (proxy, url) = Proxy::of_database(&db.url(), Network::Whole).await;
        let mut scheduler = Scheduler::start(&url, &["--drain-timeout", "1s"]).await;
        scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(&scheduler, &["q"], &["k"]).await;
        let held = hand.take_one().await;
        proxy.become_(Network::Cut);
        hand.post(vec![settlement(&held, succeeded())]).await;
        scheduler.process.logged("a settlement failed", PATIENCE).await;
        scheduler.process.terminate();
        // The result cannot be written; its worker keeps it and settles at another scheduler.
        assert!(scheduler.process.exit(Duration::from_secs(15)).await.success());
        let second = Scheduler::start(&db.url(), &[]).await;
        let mut hand = hand.again(&second, std::slice::from_ref(&held)).await.expect("moves");
        assert_eq!(hand.settle(&held, succeeded()).await.verdict(), SettleVerdict::Applied);
    })
    .await;
}

#[tokio::test]
async fn connections_that_the_server_ends_are_replaced_without_losing_anything() {
    db_test(async |db| {
        let scheduler = Scheduler::start(&db.url(), &[]).await;
        let mut hand = Hand::open(&scheduler, &["q"], &["k"]).await;
        for round in 0..5 {
            db.run("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'fencepost-scheduler'").await;
            let key = format!("round-{round}");
            let enqueued = async || scheduler.try_enqueue(keyed("q", "k", &key)).await.is_ok();
            eventually(PATIENCE, "enqueued", enqueued).await;
            let grant = hand.take_one().await;
            assert_eq!(hand.settle(&grant, succeeded()).await.verdict(), SettleVerdict::Applied);
        }
        assert_eq!(db.number("select count(*) from fencepost.finished").await, 5);
    })
    .await;
}

#[tokio::test]
async fn a_held_lock_delays_and_loses_nothing() {
    db_test(async |db| {
        let scheduler = Scheduler::start(&db.url(), &[]).await;
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(&scheduler, &["q"], &["k"]).await;
        let held = hand.take_one().await;
        let locking = db.run("begin; lock table fencepost.lease; select pg_sleep(2); commit");
        let settling = async {
            let locked = "select count(*) from pg_locks where mode = 'AccessExclusiveLock' and granted
                and relation = 'fencepost.lease'::regclass";
            eventually(PATIENCE, "locked", async || db.number(locked).await == 1).await;
            hand.post(vec![settlement(&held, succeeded())]).await;
            hand.quiet(Duration::from_secs(1)).await;
            assert_eq!(hand.acks(1).await[0].verdict(), SettleVerdict::Applied);
        };
        tokio::join!(locking, settling);
        assert_eq!(scheduler.state(id).await, JobState::Succeeded);
    })
    .await;
}

#[tokio::test]
async fn locked_leases_do_not_keep_jobs_from_being_stored() {
    db_test(async |db| {
        let scheduler = Scheduler::start(&db.url(), &["--db-lock-timeout", "200ms"]).await;
        scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(&scheduler, &["q"], &["k"]).await;
        let first = hand.take_one().await;
        hand.room(1).await;
        hand.beat(std::slice::from_ref(&first)).await;
        let locking = db.run("begin; lock table fencepost.lease; select pg_sleep(3); commit");
        let storing = async {
            let locked = "select count(*) from pg_locks where mode = 'AccessExclusiveLock' and granted
                and relation = 'fencepost.lease'::regclass";
            eventually(PATIENCE, "locked", async || db.number(locked).await == 1).await;
            let id = scheduler.enqueue(job("q", "k")).await;
            assert_eq!(db.number(locked).await, 1, "although a slot waits for it");
            id
        };
        let ((), id) = tokio::join!(locking, storing);
        assert_eq!(hand.accept(1).await[0].job_id, id);
    })
    .await;
}

#[tokio::test]
async fn a_claim_that_the_database_answers_late_is_granted_all_the_same() {
    db_test(async |db| {
        let flags = ["--grant-ack-timeout", "200ms", "--db-lock-timeout", "2500ms", "--db-statement-timeout", "3s"];
        let scheduler = Scheduler::start(&db.url(), &flags).await;
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(&scheduler, &["q"], &["k"]).await;
        let locking = db.run("begin; lock table fencepost.lease; select pg_sleep(1); commit");
        let claiming = async {
            let locked = "select count(*) from pg_locks where mode = 'AccessExclusiveLock' and granted
                and relation = 'fencepost.lease'::regclass";
            eventually(PATIENCE, "locked", async || db.number(locked).await == 1).await;
            hand.take_one().await
        };
        let ((), grant) = tokio::join!(locking, claiming);
        assert_eq!(grant.job_id, id);
        assert_eq!(
            db.number("select count(*) from fencepost.attempt_log").await,
            0,
            "nothing was given back meanwhile"
        );
        assert_eq!(hand.settle(&grant, succeeded()).await.verdict(), SettleVerdict::Applied);
    })
    .await;
}
