//! From the claim to the worker: acknowledgement, size of messages, slow readers.

use std::time::Duration;

use queue_core::{DEFAULT_MAX_PAYLOAD_BYTES, MAX_UNDELIVERED};
use queue_proto::v1::work_request::Message as Request;
use queue_proto::v1::work_response::Message as Response;
use queue_proto::v1::{self, AttemptEnd, JobState, SettleVerdict};
use serde_json::{Value, json};
use testbed::eventually;
use tonic::Code;

use crate::hand::{Hand, hello, raw, succeeded};
use crate::setup::{PATIENCE, job, with_flags, with_scheduler};

/// Grants must be acknowledged within this.
const HASTY: [&str; 2] = ["--grant-ack-timeout", "200ms"];

/// A field of a log line, whether it is a number or a text.
fn text(field: &Value) -> String {
    field.as_str().map_or_else(|| field.to_string(), str::to_owned)
}

fn sized(queue: &str, bytes: usize) -> v1::NewJob {
    v1::NewJob { payload: vec![b'x'; bytes].into(), ..job(queue, "k") }
}

#[tokio::test]
async fn a_job_that_a_free_slot_waits_for_is_leased_as_it_is_stored_unless_others_waited_before() {
    const AT_ONCE: &str =
        "select count(*) from fencepost.lease l join fencepost.job j on j.job_id = l.job_id and j.xmin = l.xmin";
    with_scheduler(async |db, scheduler| {
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let first = scheduler.enqueue(job("q", "k")).await;
        let held = hand.take_one().await;
        assert_eq!((held.job_id, db.number(AT_ONCE).await), (first, 0), "it came before the slot");
        hand.room(2).await;
        hand.beat(std::slice::from_ref(&held)).await;
        let mut ids = scheduler.enqueue_all(vec![job("q", "k"); 2]).await;
        let grants = hand.accept(2).await;
        assert_eq!(grants.iter().map(|grant| grant.job_id).collect::<Vec<_>>(), ids);
        assert_eq!(db.number(AT_ONCE).await, 2, "one commit");
        ids.push(scheduler.enqueue(job("q", "k")).await);
        for grant in grants.iter().chain([&held]) {
            assert_eq!(hand.settle(grant, succeeded()).await.verdict(), SettleVerdict::Applied);
        }
        let late = scheduler.enqueue(job("q", "k")).await;
        let grants = hand.take(2).await;
        assert_eq!(grants.iter().map(|grant| grant.job_id).collect::<Vec<_>>(), [ids[2], late], "in their order");
    })
    .await;
}

/// Shows that it lives and acknowledges nothing, until the scheduler ends the stream.
async fn mute(mut hand: Hand) -> Hand {
    hand.send(Request::Ping(v1::Ping {})).await;
    assert_eq!(hand.end().await.map(|status| status.code()), Some(Code::DeadlineExceeded));
    hand
}

#[tokio::test]
async fn a_grant_that_did_not_arrive_goes_back_to_the_front_and_uses_no_attempt() {
    with_flags(&HASTY, async |_, scheduler| {
        let ids = scheduler.enqueue_all(vec![job("q", "k"); 3]).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        hand.room(1).await;
        let lost = hand.grants(1).await.remove(0);
        assert_eq!(lost.job_id, ids[0]);
        let mut hand = mute(hand).await.again(scheduler, &[]).await.expect("the session lives");
        scheduler.reaches(ids[0], JobState::Ready).await;
        let job = scheduler.job(ids[0]).await;
        assert_eq!((job.attempts_used, job.lease_losses, job.attempts.len()), (0, 0, 1));
        assert_eq!((job.attempts[0].end(), job.attempts[0].token), (AttemptEnd::Undelivered, lost.token));

        let again = hand.take_one().await;
        assert_eq!((again.job_id, again.attempt), (ids[0], 1), "before the others, as the same attempt");
        assert!(again.token > lost.token);
        assert_eq!(hand.settle(&lost, succeeded()).await.verdict(), SettleVerdict::Fenced);
        assert_eq!(hand.settle(&again, succeeded()).await.verdict(), SettleVerdict::Applied);
        assert_eq!(hand.take_one().await.job_id, ids[1]);
    })
    .await;
}

#[tokio::test]
async fn a_grant_that_arrives_late_is_not_taken_back_before_its_stream_is_gone() {
    with_flags(&HASTY, async |db, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        hand.room(1).await;
        // As if what it is told came later than what it says.
        let late = hand.grants(1).await;
        let hand = mute(hand).await;
        assert_eq!(scheduler.state(id).await, JobState::Leased);
        let mut hand = hand.again(scheduler, &late).await.expect("the session lives");
        assert_eq!(hand.welcome.lost, [], "it has started the job by now");
        assert_eq!(db.number("select count(*) from fencepost.attempt_log").await, 0);
        assert_eq!(hand.settle(&late[0], succeeded()).await.verdict(), SettleVerdict::Applied);
    })
    .await;
}

#[tokio::test]
async fn a_job_that_cannot_be_delivered_many_times_in_a_row_is_dead() {
    with_flags(&HASTY, async |_, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let mut last = 0;
        for _ in 0..MAX_UNDELIVERED {
            hand.room(1).await;
            let grant = hand.grants(1).await.remove(0);
            assert!(grant.token > last && grant.attempt == 1);
            last = grant.token;
            hand = mute(hand).await.again(scheduler, &[]).await.expect("the session lives");
        }
        scheduler.reaches(id, JobState::Dead).await;
        let job = scheduler.job(id).await;
        assert_eq!((job.attempts_used, job.dead_reason.as_str()), (0, "undeliverable"));
        assert_eq!(job.attempts.len(), MAX_UNDELIVERED as usize);
        let line = scheduler.says("job is dead", 1).await.remove(0);
        let named = ["job.id", "job.queue", "job.kind", "reason"].map(|field| text(&line[field]));
        assert_eq!(named, [id.to_string(), "q".to_owned(), "k".to_owned(), "undeliverable".to_owned()]);
        assert_eq!((&line["level"], &line["target"]), (&json!("WARN"), &json!("scheduler::obituary")));
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_acknowledges_nothing_gets_one_job_at_a_time_and_is_named() {
    with_flags(&HASTY, async |db, scheduler| {
        let ids = scheduler.enqueue_all(vec![job("q", "k"); 20]).await;
        let mut silent = Hand::open(scheduler, &["q"], &["k"]).await;
        for taken_back in 1..=3 {
            silent.room(10_000).await;
            silent.grants(1).await;
            silent = mute(silent).await.again(scheduler, &[]).await.expect("the session lives");
            eventually(PATIENCE, "the grant is taken back", async || {
                db.number("select count(*) from fencepost.attempt_log").await == taken_back
            })
            .await;
            assert_eq!(db.number("select count(*) from fencepost.lease").await, 0);
        }
        let line = scheduler.says("worker does not acknowledge its grants", 3).await.remove(0);
        assert_eq!((&line["level"], &line["worker"]), (&json!("WARN"), &json!("hand")));
        assert!(line["session.id"].is_string(), "{line}");

        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let mut got: Vec<i64> = hand.take(20).await.iter().map(|grant| grant.job_id).collect();
        got.sort_unstable();
        assert_eq!(got, ids);
        assert_eq!(db.number("select count(*) from fencepost.dead").await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_heartbeat_that_lists_a_grant_acknowledges_it() {
    with_flags(&HASTY, async |_, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        hand.room(1).await;
        let held = hand.grants(1).await;
        hand.hold(&held, Duration::from_millis(800)).await;
        assert_eq!(scheduler.state(id).await, JobState::Leased);
        assert_eq!(hand.settle(&held[0], succeeded()).await.verdict(), SettleVerdict::Applied);
    })
    .await;
}

#[tokio::test]
async fn grants_sent_to_a_worker_that_died_before_it_acknowledged_them_are_lost_and_never_free() {
    with_flags(&HASTY, async |db, scheduler| {
        let once = v1::NewJob {
            retry: Some(v1::RetryPolicy { max_attempts: Some(1), ..Default::default() }),
            ..job("q", "k")
        };
        scheduler.enqueue_all(vec![once; 3]).await;
        let mut gone = Hand::open(scheduler, &["q"], &["k"]).await;
        gone.take(1).await;
        gone.room(2).await;
        gone.grants(2).await;
        gone.close();
        let session = db.number("select max(session_no) from fencepost.worker_session").await;
        // It may have started them: a job that may run once must not be granted again.
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        hand.room(3).await;
        hand.hold(&[], Duration::from_millis(800)).await;
        assert_eq!(db.number("select count(*) from fencepost.lease").await, 3, "well past the time to acknowledge");
        db.expire_session(session).await;
        db.end_grace().await;
        assert_eq!(scheduler.reap().await, (1, 3));
        let dead = "select count(*) from fencepost.dead where attempts = 1 and lease_losses = 1";
        assert_eq!(db.number(dead).await, 3);
        assert_eq!(db.number("select count(*) from fencepost.attempt_log where ended <> 'lost'").await, 0);
    })
    .await;
}

#[tokio::test]
async fn many_small_jobs_travel_in_few_messages() {
    with_scheduler(async |_, scheduler| {
        scheduler.enqueue_all(vec![job("q", "k"); 800]).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        hand.room(800).await;
        let (mut jobs, mut messages) = (0, 0);
        while jobs < 800 {
            let grants = hand.some_grants().await;
            hand.acknowledge(&grants).await;
            jobs += grants.len();
            messages += 1;
        }
        assert!(messages <= 20, "{messages} messages for 800 jobs");
    })
    .await;
}

#[tokio::test]
async fn messages_stay_below_the_workers_bound_whatever_the_payloads() {
    with_scheduler(async |_, scheduler| {
        for _ in 0..2 {
            scheduler.enqueue_all(vec![sized("q", DEFAULT_MAX_PAYLOAD_BYTES); 10]).await;
        }
        for bound in [5 << 20, 2 << 20] {
            let hello = v1::Hello { max_message_bytes: Some(bound), ..hello(&["q"], &["k"]) };
            // The transport refuses whatever is larger.
            let (requests, receiver) = tokio::sync::mpsc::channel(64);
            let send = async |message| requests.send(v1::WorkRequest { message: Some(message) }).await.expect("room");
            send(Request::Hello(hello)).await;
            send(Request::Credit(v1::Credit { total: 10 })).await;
            let mut client = scheduler.work().max_decoding_message_size(bound as usize);
            let requests_stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
            let mut responses = client.work(requests_stream).await.expect("opens").into_inner();
            let (mut jobs, mut largest) = (0, 0);
            while jobs < 10 {
                let message = responses.message().await.expect("within the bound").expect("a message");
                if let Some(Response::Grants(grants)) = message.message {
                    let leases: Vec<v1::LeaseRef> = grants.grants.iter().map(crate::hand::lease).collect();
                    jobs += leases.len();
                    largest = largest.max(leases.len());
                    send(Request::LeaseAck(v1::LeaseAck { leases })).await;
                }
            }
            assert_eq!(largest, if bound == 5 << 20 { 4 } else { 1 }, "as many as fit");
        }
        assert_eq!(scheduler.stats("q").await.leased, 20);
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_does_not_read_holds_up_nobody_and_its_jobs_go_back() {
    with_scheduler(async |db, scheduler| {
        let ids = scheduler.enqueue_all(vec![sized("slow", 300 << 10); 50]).await;
        let credit = Request::Credit(v1::Credit { total: 50 });
        let opened = raw(scheduler, vec![Request::Hello(hello(&["slow"], &["k"])), credit]).await.expect("opens");
        let session = db.number("select max(session_no) from fencepost.worker_session").await;
        // The only thing it ever says: it has its first grant, so the others follow.
        eventually(PATIENCE, "its first job is claimed", async || scheduler.stats("slow").await.leased == 1).await;
        let token = db.number("select max(token) from fencepost.lease").await;
        let leases = vec![v1::LeaseRef { job_id: ids[0], token }];
        let ack = v1::WorkRequest { message: Some(Request::LeaseAck(v1::LeaseAck { leases })) };
        opened.0.send(ack).await.expect("there is room");
        eventually(PATIENCE, "its jobs are claimed", async || scheduler.stats("slow").await.leased == 50).await;
        let mut hand = Hand::open(scheduler, &["fast", "slow"], &["k"]).await;
        for _ in 0..20 {
            let id = scheduler.enqueue(job("fast", "k")).await;
            let grant = hand.take_one().await;
            assert_eq!(grant.job_id, id);
            hand.settle(&grant, succeeded()).await;
        }
        // It says nothing either, so it may have started them: they go back when its session is over.
        db.expire_session(session).await;
        db.end_grace().await;
        assert_eq!(scheduler.reap().await, (1, 50));
        hand.room(50).await;
        let mut jobs = Vec::new();
        while jobs.len() < 50 {
            let more = hand.some_grants().await;
            hand.acknowledge(&more).await;
            jobs.extend(more.iter().map(|grant| grant.job_id));
        }
        jobs.sort_unstable();
        assert_eq!(jobs, ids);
        drop(opened);
    })
    .await;
}

#[tokio::test]
async fn a_flood_of_small_messages_is_no_reason_to_close_a_connection() {
    with_scheduler(async |_, scheduler| {
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        for _ in 0..5_000 {
            hand.send(Request::Ping(v1::Ping {})).await;
        }
        let flood = (0..1_000).map(|_| scheduler.try_enqueue(job("q", "k")));
        for answer in futures::future::join_all(flood).await {
            answer.expect("stored");
        }
        assert_eq!(hand.beat(&[]).await.lost, []);
        assert_eq!(hand.take(100).await.len(), 100);
    })
    .await;
}

#[tokio::test]
async fn invalid_utf8_and_garbage_are_refused_at_the_door() {
    with_scheduler(async |db, scheduler| {
        // EnqueueRequest { job { queue = 0xff } }, then a length that lies, then noise.
        for bytes in [&b"\x0a\x03\x0a\x01\xff"[..], &b"\x0a\x7f\x0a\x01q"[..], &[0xff; 64][..]] {
            let refused = crate::wire::call(scheduler.address, "/fencepost.v1.QueueService/Enqueue", bytes).await;
            let refused = refused.expect_err("refused");
            assert!(matches!(refused.code(), Code::Internal | Code::InvalidArgument), "{refused}");
            let refused = crate::wire::call(scheduler.address, "/fencepost.v1.WorkService/Work", bytes).await;
            assert!(refused.is_err());
        }
        assert_eq!(db.number("select count(*) from fencepost.job").await, 0);
        scheduler.enqueue(job("q", "k")).await;
    })
    .await;
}
