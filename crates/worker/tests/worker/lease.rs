//! Credits, acknowledgements, heartbeats and settlements.

use std::time::Duration;

use queue_proto::millis;
use queue_proto::v1::settlement::Outcome;
use queue_proto::v1::{self, work_request, work_response};
use worker::{CancelReason, Context, HandlerError, Success};

use crate::fake::{Fake, grant, lease, patiently};
use crate::setup::{TTL, builder, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credits_never_exceed_the_free_slots() {
    let mut fake = Fake::start();
    let mut worker = run(builder(&[&fake.url]).concurrency(3));
    let mut session = fake.welcome(TTL).await;
    assert_eq!(session.hello.capacity, 3);
    session.credited(3).await;
    session.grant([grant(1, "wait"), grant(2, "wait"), grant(3, "wait")]).await;
    for _ in 0..3 {
        worker.started().await;
    }
    session.fresh_heartbeat().await;
    assert_eq!(session.credit, 3, "no slot is free, so none is promised");
    worker.release.add_permits(1);
    let settled = session.settlement().await;
    session.applied(settled.job_id).await;
    session.credited(4).await;
    worker.release.add_permits(2);
    for _ in 0..2 {
        let settled = session.settlement().await;
        session.applied(settled.job_id).await;
    }
    session.credited(6).await;
    worker.finish(session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_follow_the_schedulers_pace_and_are_never_slower_than_the_interval() {
    let mut fake = Fake::start();
    let worker = run(builder(&[&fake.url]));
    let hour = Duration::from_hours(1);
    // Were the pace not followed, the second one would come in an hour.
    let mut session = fake.accept().await;
    session.pace(Duration::from_millis(20));
    session.welcome_to_beat(hour, TTL, Vec::new()).await;
    for sequence in 1..=3 {
        assert_eq!(session.heartbeat().await.sequence, sequence);
    }
    session.end(tonic::Status::unavailable("another stream")).await;
    // And here, if it were followed although it is slower.
    let mut session = fake.accept().await;
    session.pace(hour);
    session.welcome_to_beat(Duration::from_millis(20), TTL, Vec::new()).await;
    for sequence in 1..=3 {
        assert_eq!(session.heartbeat().await.sequence, sequence);
    }
    worker.finish(session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_beyond_the_free_slots_is_released() {
    let mut fake = Fake::start();
    let mut worker = run(builder(&[&fake.url]).concurrency(1));
    let mut session = fake.welcome(TTL).await;
    session.grant([grant(1, "wait"), grant(2, "wait")]).await;
    worker.started().await;
    assert!(matches!(session.applied_outcome(2).await, Outcome::Released(_)));
    worker.release.add_permits(1);
    assert!(matches!(session.applied_outcome(1).await, Outcome::Succeeded(_)));
    worker.finish(session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_are_acknowledged_in_one_batch_and_listed_in_heartbeats_with_their_progress() {
    let mut fake = Fake::start();
    let mut worker = run(builder(&[&fake.url]).concurrency(2));
    let mut session = fake.welcome(TTL).await;
    session.grant([grant(1, "wait"), grant(2, "wait")]).await;
    let mut acked = session
        .until("an acknowledgement", |message| match message {
            work_request::Message::LeaseAck(ack) => Some(ack.leases),
            _ => None,
        })
        .await;
    acked.sort_by_key(|lease| lease.job_id);
    assert_eq!(acked, [lease(1), lease(2)]);
    let job = worker.started().await;
    job.progress(0.5);
    let beat = session.fresh_heartbeat().await;
    assert_eq!(beat.leases.len(), 2);
    let reported = beat.leases.iter().find(|held| held.job_id == job.job_id().get()).and_then(|held| held.progress);
    assert_eq!(reported, Some(0.5));
    worker.release.add_permits(2);
    for _ in 0..2 {
        let settled = session.settlement().await;
        session.applied(settled.job_id).await;
    }
    worker.finish(session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_sees_everything_that_the_grant_says() {
    let mut fake = Fake::start();
    let mut worker = run(builder(&[&fake.url]));
    let mut session = fake.welcome(TTL).await;
    let sent = v1::Grant {
        attempt: 3,
        max_attempts: 7,
        payload: "in".into(),
        headers: [("h".to_owned(), "v".to_owned())].into(),
        idempotency_key: Some("key".to_owned()),
        traceparent: Some("00-1-2-01".to_owned()),
        timeout: Some(millis(Duration::from_secs(10))),
        ..grant(4, "wait")
    };
    session.grant([sent]).await;
    let job = worker.started().await;
    assert_eq!((job.job_id().get(), job.token().get(), job.attempt(), job.max_attempts()), (4, 40, 3, 7));
    assert_eq!((&job.payload()[..], job.headers()["h"].as_str()), (&b"in"[..], "v"));
    assert_eq!((job.idempotency_key(), job.traceparent()), (Some("key"), Some("00-1-2-01")));
    assert_eq!((job.queue(), job.kind()), ("q", "wait"));
    assert!(job.remaining() <= Duration::from_secs(10) && job.remaining() > Duration::from_secs(5));
    worker.release.add_permits(1);
    let Outcome::Succeeded(success) = session.applied_outcome(4).await else { panic!("it succeeds") };
    assert_eq!(success.result.as_deref(), Some(&b"done"[..]));
    worker.finish(session).await;
}

#[test]
fn heartbeats_go_on_while_handlers_block_every_thread_of_the_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let of_test = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
    let (say, told) = std::sync::mpsc::channel();
    of_test.block_on(async {
        let mut fake = Fake::start();
        let block = move |_: Context| {
            let (say, wait) = (say.clone(), wait.clone());
            async move {
                say.send(()).unwrap();
                // Blocks its thread, as a careless handler does.
                let _ = wait.lock().unwrap().recv();
                Ok::<_, HandlerError>(Success::default())
            }
        };
        let worker = {
            let _entered = runtime.enter();
            run(builder(&[&fake.url]).concurrency(2).handler("block", block))
        };
        let mut session = fake.welcome(Duration::from_secs(1)).await;
        session.grant([grant(1, "block"), grant(2, "block")]).await;
        told.recv().unwrap();
        told.recv().unwrap();
        while session.heartbeat().await.leases.len() < 2 {}
        // Far longer than the lease time, with every heartbeat answered.
        for _ in 0..25 {
            assert_eq!(session.heartbeat().await.leases.len(), 2);
        }
        drop(go);
        for _ in 0..2 {
            let settled = session.settlement().await;
            assert!(matches!(settled.outcome, Some(Outcome::Succeeded(_))));
            session.applied(settled.job_id).await;
        }
        worker.finish(session).await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lease_cancels_its_handler_and_its_result_is_not_sent() {
    let mut fake = Fake::start();
    let mut worker = run(builder(&[&fake.url]).concurrency(2));
    let mut session = fake.welcome(TTL).await;
    session.grant([grant(1, "wait"), grant(2, "wait")]).await;
    let (first, second) = (worker.started().await, worker.started().await);
    let lost = if first.job_id().get() == 1 { first } else { second };
    session.lose(1).await;
    patiently("the cancellation", lost.cancellation().cancelled()).await;
    assert_eq!(lost.cancel_reason(), Some(&CancelReason::LeaseLost));
    // Its slot is free again, and the only result ever sent is the other job's.
    session.credited(3).await;
    worker.release.add_permits(1);
    assert!(matches!(session.applied_outcome(2).await, Outcome::Succeeded(_)));
    assert!(session.fresh_heartbeat().await.leases.is_empty());
    worker.finish(session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_result_fails_the_job_for_good_with_the_reason() {
    let mut fake = Fake::start();
    let mut worker = run(builder(&[&fake.url]));
    let mut session = fake.welcome(TTL).await;
    session.grant([grant(1, "wait")]).await;
    worker.started().await;
    worker.release.add_permits(1);
    session.settlement().await;
    session.ack(1, 10, v1::SettleVerdict::Rejected, "succeeded.result: too strange").await;
    let Outcome::Failed(failed) = session.applied_outcome(1).await else { panic!("it fails") };
    assert!(!failed.retryable && failed.message.contains("too strange"));
    worker.finish(session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_or_duplicate_result_is_forgotten() {
    for verdict in [v1::SettleVerdict::Fenced, v1::SettleVerdict::Duplicate] {
        let mut fake = Fake::start();
        let mut worker = run(builder(&[&fake.url]));
        let mut session = fake.welcome(TTL).await;
        session.grant([grant(1, "wait")]).await;
        worker.started().await;
        worker.release.add_permits(1);
        session.settlement().await;
        session.ack(1, 10, verdict, "").await;
        assert!(session.fresh_heartbeat().await.leases.is_empty());
        worker.finish(session).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_is_a_retryable_failure_and_the_worker_lives_on() {
    let mut fake = Fake::start();
    let worker = run(builder(&[&fake.url]).concurrency(1));
    let mut session = fake.welcome(TTL).await;
    for job in 1..=3 {
        session.grant([grant(job, "panic")]).await;
        let Outcome::Failed(failed) = session.applied_outcome(job).await else { panic!("it fails") };
        assert_eq!((failed.code.as_str(), failed.message.as_str(), failed.retryable), ("panic", "boom", true));
    }
    worker.finish(session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_fails_the_attempt_and_a_deaf_handler_is_dropped() {
    let mut fake = Fake::start();
    let deaf = |_: Context| std::future::pending::<Result<Success, HandlerError>>();
    let worker = run(builder(&[&fake.url]).concurrency(1).handler("deaf", deaf));
    let mut session = fake.welcome(TTL).await;
    for (job, kind) in [(1, "deaf"), (2, "wait")] {
        session.grant([v1::Grant { timeout: Some(millis(Duration::from_millis(50))), ..grant(job, kind) }]).await;
        let Outcome::Failed(failed) = session.applied_outcome(job).await else { panic!("it fails") };
        assert_eq!((failed.code.as_str(), failed.retryable), ("timeout", true));
        session.credited(u64::try_from(job).unwrap() + 1).await;
    }
    worker.finish(session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_requested_cancellation_reaches_the_handler_which_settles_by_itself() {
    let mut fake = Fake::start();
    let mut worker = run(builder(&[&fake.url]));
    let mut session = fake.welcome(TTL).await;
    session.grant([grant(1, "wait")]).await;
    let job = worker.started().await;
    let cancel = v1::Cancel { lease: Some(lease(1)), reason: "by an operator".to_owned() };
    session.send(work_response::Message::Cancel(cancel)).await;
    let Outcome::Failed(failed) = session.applied_outcome(1).await else { panic!("it fails") };
    assert_eq!(failed.message, "interrupted");
    assert_eq!(job.cancel_reason(), Some(&CancelReason::Requested("by an operator".to_owned())));
    worker.finish(session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn past_its_deadline_the_worker_cancels_every_handler() {
    let mut fake = Fake::start();
    let mut worker = run(builder(&[&fake.url]));
    let session = fake.accept().await;
    session.stop_renewing();
    session.welcome(Duration::from_millis(400), Vec::new()).await;
    session.grant([grant(1, "wait")]).await;
    let job = worker.started().await;
    patiently("the cancellation", job.cancellation().cancelled()).await;
    assert_eq!(job.cancel_reason(), Some(&CancelReason::LeaseExpired));
    // The row decides, so the job is given back in case the lease still lives, whichever stream it is.
    let mut next = fake.welcome(TTL).await;
    assert_eq!(next.hello.leases, [lease(1)]);
    assert!(matches!(next.applied_outcome(1).await, Outcome::Released(_)));
    worker.finish(next).await;
    drop(session);
}

#[test]
fn no_handler_starts_after_the_deadline() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let of_test = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
    let (say, told) = std::sync::mpsc::channel();
    of_test.block_on(async {
        let mut fake = Fake::start();
        let block = move |_: Context| {
            let (say, wait) = (say.clone(), wait.clone());
            async move {
                say.send(()).unwrap();
                let _ = wait.lock().unwrap().recv();
                Ok::<_, HandlerError>(Success::default())
            }
        };
        let mut worker = {
            let _entered = runtime.enter();
            run(builder(&[&fake.url]).concurrency(2).handler("block", block))
        };
        let session = fake.accept().await;
        session.stop_renewing();
        session.welcome(Duration::from_millis(600), Vec::new()).await;
        // The only thread is blocked by the first, so the second is buffered until its lease is over.
        session.grant([grant(1, "block")]).await;
        told.recv().unwrap();
        session.grant([grant(2, "wait")]).await;
        // Asks for a stream elsewhere, which is refused until the deadline has passed for sure.
        fake.refuse(Some(tonic::Status::unavailable("no database")));
        tokio::time::sleep(Duration::from_millis(700)).await;
        drop(go);
        fake.refuse(None);
        let mut next = fake.welcome(TTL).await;
        for _ in 0..2 {
            let settled = next.settlement().await;
            if settled.job_id == 2 {
                assert!(matches!(settled.outcome, Some(Outcome::Released(_))), "{settled:?}");
            }
            next.applied(settled.job_id).await;
        }
        assert!(worker.started.try_recv().is_err(), "the second handler never started");
        worker.finish(next).await;
    });
}
