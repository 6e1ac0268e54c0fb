//! The pool on its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};

use super::{Pool, SubmitError, Submitted, WhenFull};

const LONG: Duration = Duration::from_secs(30);

/// A pool of one runner that is busy until `release` is notified, and a queue of one that is full.
async fn full_pool() -> (Pool, Arc<Semaphore>) {
    let pool = Pool::new(1, 1);
    let release = Arc::new(Semaphore::new(0));
    let started = Arc::new(Notify::new());
    for _ in 0..2 {
        let (release, begun) = (release.clone(), started.clone());
        pool.submit(WhenFull::Block, move |_| async move {
            begun.notify_one();
            release.acquire().await.unwrap().forget();
        })
        .await
        .unwrap();
        if pool.running() == 0 {
            started.notified().await;
        }
    }
    (pool, release)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_job_is_processed_exactly_once_across_8_runners_and_500_jobs() {
    let pool = Pool::new(8, 16);
    let counts: Arc<Vec<AtomicUsize>> = Arc::new((0..500).map(|_| AtomicUsize::new(0)).collect());
    for job in 0..500 {
        let counts = counts.clone();
        let submitted = pool.submit(WhenFull::Block, move |_| async move {
            tokio::task::yield_now().await;
            counts[job].fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(submitted.await, Ok(Submitted::Accepted));
    }
    assert!(!pool.shutdown(LONG).await.timed_out);
    assert!(counts.iter().all(|count| count.load(Ordering::SeqCst) == 1));
}

#[tokio::test]
async fn five_jobs_survive_a_sixth_that_panics() {
    let pool = Pool::new(1, 6);
    let done = Arc::new(AtomicUsize::new(0));
    for job in 0..6 {
        let done = done.clone();
        pool.submit(WhenFull::Block, move |_| async move {
            assert_ne!(job, 2, "this one panics");
            done.fetch_add(1, Ordering::SeqCst);
        })
        .await
        .unwrap();
    }
    pool.shutdown(LONG).await;
    assert_eq!((done.load(Ordering::SeqCst), pool.panicked()), (5, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_blocks_its_thread_does_not_hold_up_the_next_one() {
    for _ in 0..50 {
        let pool = Pool::new(2, 2);
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (done, second) = tokio::sync::oneshot::channel();
        pool.submit(WhenFull::Block, |_| async move { assert!(wait.recv().is_err()) }).await.unwrap();
        pool.submit(WhenFull::Block, |_| async move { done.send(()).unwrap() }).await.unwrap();
        tokio::time::timeout(LONG, second).await.unwrap().unwrap();
        drop(go);
        pool.shutdown(LONG).await;
    }
}

#[tokio::test]
async fn a_panic_before_the_first_await_is_caught_too() {
    let pool = Pool::new(1, 2);
    let done = Arc::new(AtomicUsize::new(0));
    let panics = |_| -> std::future::Ready<()> { panic!("before any future exists") };
    pool.submit(WhenFull::Block, panics).await.unwrap();
    let counted = done.clone();
    pool.submit(WhenFull::Block, |_| async move {
        counted.fetch_add(1, Ordering::SeqCst);
    })
    .await
    .unwrap();
    pool.shutdown(LONG).await;
    assert_eq!((done.load(Ordering::SeqCst), pool.panicked()), (1, 1));
}

#[tokio::test]
async fn a_full_queue_rejects_drops_and_counts_or_blocks_as_asked() {
    let (pool, release) = full_pool().await;
    assert_eq!(pool.depth(), 1);
    assert_eq!(pool.submit(WhenFull::Reject, |_| async {}).await, Err(SubmitError::Full));
    assert_eq!(pool.submit(WhenFull::Drop, |_| async {}).await, Ok(Submitted::Dropped));
    assert_eq!(pool.dropped(), 1);
    let mut blocked = Box::pin(pool.submit(WhenFull::Block, |_| async {}));
    assert!(futures::poll!(&mut blocked).is_pending());
    release.add_permits(2);
    assert_eq!(blocked.await, Ok(Submitted::Accepted));
    assert!(!pool.shutdown(LONG).await.timed_out);
    assert_eq!((pool.depth(), pool.running()), (0, 0));
}

#[tokio::test]
async fn what_waits_never_exceeds_the_queue_however_much_is_offered() {
    let (pool, release) = full_pool().await;
    for _ in 0..100_000 {
        assert_eq!(pool.submit(WhenFull::Drop, |_| async {}).await, Ok(Submitted::Dropped));
    }
    assert_eq!((pool.depth(), pool.dropped()), (1, 100_000));
    release.add_permits(2);
    pool.shutdown(LONG).await;
}

#[tokio::test]
async fn submit_after_shutdown_is_refused_with_a_clear_error() {
    let pool = Pool::new(1, 1);
    pool.shutdown(LONG).await;
    for policy in [WhenFull::Block, WhenFull::Drop, WhenFull::Reject] {
        let error = pool.submit(policy, |_| async {}).await.unwrap_err();
        assert_eq!(error, SubmitError::ShutDown);
        assert!(error.to_string().contains("shut down"));
    }
}

#[tokio::test]
async fn a_submitter_that_waits_for_room_is_refused_when_the_pool_shuts_down() {
    let (pool, release) = full_pool().await;
    let mut blocked = Box::pin(pool.submit(WhenFull::Block, |_| async {}));
    assert!(futures::poll!(&mut blocked).is_pending());
    pool.close();
    assert_eq!(blocked.await, Err(SubmitError::ShutDown));
    release.add_permits(2);
    pool.shutdown(LONG).await;
}

#[tokio::test]
async fn shutdown_drains_what_is_buffered() {
    let (pool, release) = full_pool().await;
    release.add_permits(2);
    let report = pool.shutdown(LONG).await;
    assert_eq!((report.timed_out, report.abandoned, release.available_permits()), (false, 0, 0));
}

#[tokio::test]
async fn shutdown_cancels_after_its_timeout_then_still_waits_and_says_so() {
    let pool = Pool::new(1, 1);
    let finished = Arc::new(AtomicUsize::new(0));
    let started = Arc::new(Notify::new());
    let (counter, begun) = (finished.clone(), started.clone());
    pool.submit(WhenFull::Block, |cancelled| async move {
        begun.notify_one();
        cancelled.cancelled().await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        counter.fetch_add(1, Ordering::SeqCst);
    })
    .await
    .unwrap();
    started.notified().await;
    pool.submit(WhenFull::Block, |_| async { panic!("an abandoned job never starts") }).await.unwrap();
    let report = pool.shutdown(Duration::from_millis(20)).await;
    assert_eq!((report.timed_out, report.abandoned), (true, 1));
    assert_eq!((finished.load(Ordering::SeqCst), pool.panicked()), (1, 0));
}
