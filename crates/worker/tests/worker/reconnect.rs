//! Streams that end, schedulers that vanish, sessions that expire.

use std::time::Duration;

use queue_proto::millis;
use queue_proto::v1::settlement::Outcome;
use queue_proto::v1::{self, work_response};
use tonic::Status;
use worker::{CancelReason, Error, Timing};

use crate::fake::{Fake, Session, grant, lease, patiently};
use crate::setup::{Running, TTL, builder, run, timing};

/// Two schedulers and a worker that is welcomed by one of them; the first of the pair is that one.
async fn two() -> (Fake, Fake, Running, Session) {
    two_of(timing()).await
}

async fn two_of(timing: Timing) -> (Fake, Fake, Running, Session) {
    let (mut a, mut b) = (Fake::start(), Fake::start());
    let worker = run(builder(&[&a.url, &b.url]).timing(timing));
    let mut swapped = false;
    let session = tokio::select! {
        session = a.accept() => session,
        session = b.accept() => { swapped = true; session }
    };
    session.welcome(TTL, Vec::new()).await;
    if swapped {
        std::mem::swap(&mut a, &mut b);
    }
    (a, b, worker, session)
}

/// The next stream, to whichever of two schedulers.
async fn either(a: &mut Fake, b: &mut Fake) -> Session {
    tokio::select! {
        session = a.accept() => session,
        session = b.accept() => session,
    }
}

/// A worker of two schedulers with one running job.
async fn two_with_job() -> (Fake, Fake, Running, Session) {
    let (a, b, mut worker, session) = two().await;
    session.grant([grant(1, "wait")]).await;
    worker.started().await;
    (a, b, worker, session)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_scheduler_is_left_for_another_and_running_jobs_stay() {
    let (_a, mut b, worker, session) = two_with_job().await;
    session.fall_silent();
    let mut next = b.welcome(TTL).await;
    assert_eq!(
        (next.hello.session_id.clone(), next.hello.leases.clone()),
        (session.hello.session_id.clone(), vec![lease(1)])
    );
    worker.release.add_permits(1);
    assert!(matches!(next.applied_outcome(1).await, Outcome::Succeeded(_)));
    worker.finish(next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_are_sent_again_to_whichever_scheduler_until_acknowledged() {
    let (a, mut b, worker, mut session) = two_with_job().await;
    worker.release.add_permits(1);
    session.settlement().await;
    a.kill();
    let mut next = b.welcome(TTL).await;
    assert_eq!(next.hello.leases, [lease(1)]);
    let again = next.settlement().await;
    assert_eq!((again.job_id, again.token), (1, 10));
    assert_eq!(next.fresh_heartbeat().await.leases.len(), 1, "held until it is acknowledged");
    next.ack(1, 10, v1::SettleVerdict::Duplicate, "").await;
    assert!(next.fresh_heartbeat().await.leases.is_empty());
    worker.finish(next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_ends_well_is_opened_again_with_credits_from_zero() {
    let mut fake = Fake::start();
    let worker = run(builder(&[&fake.url]).concurrency(2));
    let mut session = fake.welcome(TTL).await;
    session.credited(2).await;
    session.close();
    let mut next = fake.accept().await;
    next.welcome(TTL, Vec::new()).await;
    next.credited(2).await;
    worker.finish(next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_that_does_not_renew_for_half_the_lease_is_left_before_the_lease_ends() {
    let (_a, mut b, worker, session) = two_with_job().await;
    session.stop_renewing();
    let mut next = b.welcome(TTL).await;
    assert_eq!(next.hello.leases, [lease(1)]);
    worker.release.add_permits(1);
    assert!(matches!(next.applied_outcome(1).await, Outcome::Succeeded(_)), "the handler was never cancelled");
    worker.finish(next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asked_to_drain_the_worker_opens_the_next_stream_before_it_leaves_the_first() {
    let (_a, mut b, worker, mut session) = two_with_job().await;
    let drain = v1::Drain { reconnect_after: Some(millis(Duration::from_millis(50))) };
    session.send(work_response::Message::Drain(drain)).await;
    let mut next = b.accept().await;
    session.fresh_heartbeat().await;
    next.welcome(TTL, Vec::new()).await;
    assert_eq!(next.hello.leases, [lease(1)]);
    worker.release.add_permits(1);
    assert!(matches!(next.applied_outcome(1).await, Outcome::Succeeded(_)));
    worker.finish(next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_comes_after_a_hello_that_may_have_been_heard_is_not_started() {
    let timing = Timing { backoff_base: TTL / 2, backoff_cap: TTL / 2, ..timing() };
    let (mut a, mut b, worker, mut session) = two_of(timing).await;
    let drain = v1::Drain { reconnect_after: Some(millis(Duration::ZERO)) };
    session.send(work_response::Message::Drain(drain)).await;
    // It is heard, and the welcome is lost.
    either(&mut a, &mut b).await.end(Status::unavailable("lost")).await;
    // All in the pause before the next one.
    session.pace(Duration::from_millis(10));
    for job in 1..=10 {
        assert_eq!(session.heartbeat().await.leases, []);
        session.grant([grant(job, "wait")]).await;
    }
    let next = either(&mut a, &mut b).await;
    next.welcome(TTL, Vec::new()).await;
    assert_eq!(next.hello.leases, []);
    worker.finish(next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_session_loses_everything_and_a_new_one_begins() {
    let mut fake = Fake::start();
    let mut worker = run(builder(&[&fake.url]));
    let session = fake.welcome(TTL).await;
    let old = session.hello.session_id.clone();
    session.grant([grant(1, "wait")]).await;
    let job = worker.started().await;
    session.end(Status::failed_precondition("the session has expired")).await;
    patiently("the cancellation", job.cancellation().cancelled()).await;
    assert_eq!(job.cancel_reason(), Some(&CancelReason::LeaseLost));
    let next = fake.welcome(TTL).await;
    assert_ne!(next.hello.session_id, old);
    assert!(next.hello.leases.is_empty());
    worker.finish(next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_take_over_is_answered_by_coming_back_with_the_same_session_and_leases() {
    let mut fake = Fake::start();
    let mut worker = run(builder(&[&fake.url]));
    let session = fake.welcome(TTL).await;
    let id = session.hello.session_id.clone();
    session.grant([grant(1, "wait")]).await;
    let job = worker.started().await;
    session.end(Status::aborted("another stream has taken the session over")).await;
    let mut next = fake.welcome(TTL).await;
    assert_eq!((next.hello.session_id.clone(), next.hello.leases.clone()), (id, vec![lease(1)]));
    assert!(!job.cancellation().is_cancelled());
    worker.release.add_permits(1);
    next.applied_outcome(1).await;
    worker.finish(next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_taken_over_again_and_again_is_given_up() {
    let mut fake = Fake::start();
    let worker = run(builder(&[&fake.url]));
    let session = fake.welcome(TTL).await;
    let first = session.hello.session_id.clone();
    session.end(Status::aborted("taken over")).await;
    let last = loop {
        let session = fake.welcome(TTL).await;
        if session.hello.session_id != first {
            break session;
        }
        session.end(Status::aborted("taken over")).await;
    };
    worker.finish(last).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_welcome_calls_lost_is_cancelled() {
    let mut fake = Fake::start();
    let mut worker = run(builder(&[&fake.url]));
    let session = fake.welcome(TTL).await;
    session.grant([grant(1, "wait")]).await;
    let job = worker.started().await;
    session.close();
    let next = fake.accept().await;
    next.welcome(TTL, vec![lease(1)]).await;
    patiently("the cancellation", job.cancellation().cancelled()).await;
    worker.finish(next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_would_be_refused_for_ever_ends_and_says_why() {
    let fake = Fake::start();
    fake.refuse(Some(Status::unauthenticated("the token is not known")));
    let error = run(builder(&[&fake.url])).end().await.unwrap_err();
    assert!(matches!(&error, Error::Refused { reason, .. } if reason.contains("token")), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_waits_for_a_scheduler_that_is_not_there_yet_without_a_storm() {
    let mut fake = Fake::start();
    fake.refuse(Some(Status::unavailable("starting")));
    let worker = run(builder(&[&fake.url]));
    tokio::time::sleep(Duration::from_millis(300)).await;
    fake.refuse(None);
    let session = fake.welcome(TTL).await;
    worker.finish(session).await;
    assert!(!fake.has_another());
}
