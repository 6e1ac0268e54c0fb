//! The end of a worker.

use std::time::Duration;

use queue_proto::v1::settlement::Outcome;
use worker::{CancelReason, Context, HandlerError, Report, Success};

use crate::fake::{Fake, grant};
use crate::setup::{TTL, builder, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_starts_nothing_new_and_lets_running_jobs_finish() {
    let mut fake = Fake::start();
    let mut worker = run(builder(&[&fake.url]).concurrency(2));
    let mut session = fake.welcome(TTL).await;
    session.grant([grant(1, "wait")]).await;
    worker.started().await;
    worker.stop.soft.cancel();
    session.draining().await;
    session.grant([grant(2, "wait")]).await;
    let Outcome::Released(released) = session.applied_outcome(2).await else { panic!("it is released") };
    assert_eq!(released.reason, "shutdown");
    assert_eq!(session.fresh_heartbeat().await.leases.len(), 1, "heartbeats go on for the job that runs");
    assert_eq!(session.credit, 2, "no new credit is given");
    worker.release.add_permits(1);
    assert!(matches!(session.applied_outcome(1).await, Outcome::Succeeded(_)));
    session.bye().await;
    session.close();
    assert!(worker.started.try_recv().is_err());
    assert_eq!(worker.end().await.unwrap(), Report::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_outlives_the_grace_is_cancelled_and_released_with_its_token() {
    let mut fake = Fake::start();
    let mut worker = run(builder(&[&fake.url]).drain_grace(Duration::from_millis(300)));
    let mut session = fake.welcome(TTL).await;
    session.grant([grant(1, "wait")]).await;
    let job = worker.started().await;
    worker.stop.soft.cancel();
    let Outcome::Released(released) = session.applied_outcome(1).await else { panic!("it is released") };
    assert_eq!(released.reason, "shutdown");
    assert_eq!(job.cancel_reason(), Some(&CancelReason::ShuttingDown));
    session.bye().await;
    session.close();
    assert_eq!(worker.end().await.unwrap(), Report::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deaf_handler_does_not_hold_up_the_drain() {
    let mut fake = Fake::start();
    let deaf = |_: Context| std::future::pending::<Result<Success, HandlerError>>();
    let worker = run(builder(&[&fake.url]).drain_grace(Duration::ZERO).handler("deaf", deaf));
    let mut session = fake.welcome(TTL).await;
    session.grant([grant(1, "deaf")]).await;
    session.fresh_heartbeat().await;
    worker.stop.soft.cancel();
    assert!(matches!(session.applied_outcome(1).await, Outcome::Released(_)));
    session.bye().await;
    session.close();
    worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_acknowledged_is_reported_in_bounded_time() {
    let mut fake = Fake::start();
    let mut worker = run(builder(&[&fake.url]));
    let mut session = fake.welcome(TTL).await;
    session.grant([grant(1, "wait")]).await;
    let job = worker.started().await;
    worker.release.add_permits(1);
    session.settlement().await;
    worker.stop.soft.cancel();
    let report = worker.end().await.unwrap();
    assert_eq!(report.unacknowledged, [(job.job_id(), job.token())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_gives_everything_back_at_once() {
    let mut fake = Fake::start();
    let mut worker = run(builder(&[&fake.url]));
    let mut session = fake.welcome(TTL).await;
    session.grant([grant(1, "wait")]).await;
    let job = worker.started().await;
    worker.stop.soft.cancel();
    session.draining().await;
    worker.stop.hard.cancel();
    assert!(matches!(session.settlement().await.outcome, Some(Outcome::Released(_))));
    session.bye().await;
    session.close();
    assert_eq!(worker.end().await.unwrap().unacknowledged.len(), 1);
    assert!(job.cancellation().is_cancelled());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_never_found_a_scheduler_ends_at_once() {
    let worker = run(builder(&["http://127.0.0.1:9"]));
    worker.stop.soft.cancel();
    assert_eq!(worker.end().await.unwrap(), Report::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_worker_stops_its_link() {
    let mut fake = Fake::start();
    let worker = builder(&[&fake.url]).build().unwrap();
    let task = tokio::spawn(worker.run(worker::Stop::default()));
    let mut session = fake.welcome(TTL).await;
    session.heartbeat().await;
    task.abort();
    session.bye().await;
}
