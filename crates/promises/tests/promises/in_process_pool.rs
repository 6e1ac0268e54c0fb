//! The bounded in-process pool: what the worker library's pool promises by itself, and what a whole worker and a
//! scheduler make of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use client::v1::JobState;
use testbed::eventually;
use tokio::sync::Semaphore;
use worker::{Context, HandlerError, Pool, SubmitError, Submitted, Success, WhenFull};

use crate::jobs::{attempts, enqueue, enqueue_all, is, job, jobs};
use crate::metrics::{sample, shows};
use crate::system::{PATIENCE, Running, system, worker_of};

/// A pool whose runners are all busy until the semaphore is given permits.
async fn busy(runners: usize, queue: usize) -> (Pool, Arc<Semaphore>) {
    let (pool, release) = (Pool::new(runners, queue), Arc::new(Semaphore::new(0)));
    for _ in 0..runners {
        assert_eq!(pool.submit(WhenFull::Block, waits(release.clone())).await, Ok(Submitted::Accepted));
    }
    eventually(PATIENCE, "all runners are busy", async || pool.running() == runners && pool.depth() == 0).await;
    (pool, release)
}

fn waits(
    release: Arc<Semaphore>,
) -> impl FnOnce(tokio_util::sync::CancellationToken) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    move |_| {
        Box::pin(async move {
            // Closed at the end of a test.
            let _ = release.acquire().await.map(tokio::sync::SemaphorePermit::forget);
        })
    }
}

#[tokio::test]
async fn concurrency_is_decided_by_the_process_that_runs_never_by_who_submits() {
    let (pool, release) = busy(3, 1_000).await;
    for _ in 0..1_000 {
        assert_eq!(pool.try_submit(waits(release.clone())), Ok(()));
    }
    assert_eq!((pool.running(), pool.depth()), (3, 1_000));
    release.add_permits(2_000);
    assert!(!pool.shutdown(PATIENCE).await.timed_out);
}

#[tokio::test]
async fn a_worker_never_runs_more_than_its_slots_however_much_is_enqueued() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (running, peak) = (now.clone(), most.clone());
        let handler = move |_: Context| {
            let (running, peak) = (running.clone(), peak.clone());
            async move {
                peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(5)).await;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(Success::default())
            }
        };
        enqueue_all(&scheduler.client(), jobs("a", 200)).await;
        let _worker = Running::start(worker_of(&[&scheduler]).concurrency(3).handler("a", handler));
        let held = "select count(*) from fencepost.lease";
        let done = "select count(*) from fencepost.finished";
        // What was promised is a slot each: what runs, and results on their way.
        eventually(PATIENCE, "all are done", async || {
            assert!(system.db.number(held).await <= 3 + 64, "nothing is granted without a slot");
            system.db.number(done).await == 200
        })
        .await;
        assert_eq!(most.load(Ordering::SeqCst), 3);
    })
    .await;
}

#[tokio::test]
async fn back_pressure_block_waits_for_room() {
    let (pool, release) = busy(1, 1).await;
    assert_eq!(pool.submit(WhenFull::Block, waits(release.clone())).await, Ok(Submitted::Accepted));
    let blocked = tokio::spawn({
        let (pool, release) = (pool.clone(), release.clone());
        async move { pool.submit(WhenFull::Block, waits(release)).await }
    });
    tokio::task::yield_now().await;
    assert!(!blocked.is_finished() && pool.depth() == 1);
    release.add_permits(3);
    assert_eq!(blocked.await.expect("no panic"), Ok(Submitted::Accepted));
    assert!(!pool.shutdown(PATIENCE).await.timed_out);
}

#[tokio::test]
async fn back_pressure_drop_drops_and_counts() {
    let (pool, release) = busy(1, 1).await;
    assert_eq!(pool.submit(WhenFull::Drop, waits(release.clone())).await, Ok(Submitted::Accepted));
    for dropped in 1..=5 {
        assert_eq!(pool.submit(WhenFull::Drop, waits(release.clone())).await, Ok(Submitted::Dropped));
        assert_eq!(pool.dropped(), dropped);
    }
    release.add_permits(2);
    assert!(!pool.shutdown(PATIENCE).await.timed_out);
}

#[tokio::test]
async fn back_pressure_reject_refuses_at_once() {
    let (pool, release) = busy(1, 1).await;
    assert_eq!(pool.submit(WhenFull::Reject, waits(release.clone())).await, Ok(Submitted::Accepted));
    assert_eq!(pool.submit(WhenFull::Reject, waits(release.clone())).await, Err(SubmitError::Full));
    assert_eq!(pool.dropped(), 0);
    release.add_permits(2);
    assert!(!pool.shutdown(PATIENCE).await.timed_out);
}

#[tokio::test]
async fn a_panic_in_one_job_is_caught_logged_and_failed_and_the_runner_lives_on() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let handler = |job: Context| async move {
            assert_ne!(job.payload().as_ref(), b"bad", "this job panics");
            Ok::<_, HandlerError>(Success::default())
        };
        let _worker = Running::start(worker_of(&[&scheduler]).concurrency(1).handler("a", handler));
        let bad = attempts(crate::jobs::job_in("default", "a", "bad"), 1);
        let bad = enqueue(&client, bad).await;
        enqueue_all(&client, jobs("a", 5)).await;
        system.succeeded(5).await;
        let dead = is(&client, bad, JobState::Dead).await;
        let attempt = &dead.attempts[0];
        assert_eq!(attempt.error_code, "panic");
        assert!(attempt.error.contains("this job panics"), "{}", attempt.error);
    })
    .await;
}

#[tokio::test]
async fn submit_after_shutdown_is_refused_with_a_clear_error() {
    let pool = Pool::new(2, 2);
    pool.shutdown(PATIENCE).await;
    for policy in [WhenFull::Block, WhenFull::Drop, WhenFull::Reject] {
        let error = pool.submit(policy, |_| async {}).await.expect_err("is refused");
        assert_eq!(error.to_string(), "the pool was shut down and takes no more jobs");
    }
}

#[tokio::test]
async fn shutdown_stops_intake_drains_what_is_buffered_and_reports_no_timeout() {
    let (pool, release) = busy(2, 10).await;
    for _ in 0..10 {
        assert_eq!(pool.try_submit(waits(release.clone())), Ok(()));
    }
    let ending = tokio::spawn({
        let pool = pool.clone();
        async move { pool.shutdown(PATIENCE).await }
    });
    eventually(PATIENCE, "intake has ended", async || pool.try_submit(|_| async {}) == Err(SubmitError::ShutDown))
        .await;
    assert_eq!(pool.depth(), 10);
    release.add_permits(12);
    let report = ending.await.expect("no panic");
    assert_eq!((report.timed_out, report.abandoned, release.available_permits()), (false, 0, 0));
}

#[tokio::test]
async fn shutdown_waits_up_to_a_timeout_then_cancels_then_still_waits_and_reports_it() {
    let pool = Pool::new(1, 1);
    let ended = Arc::new(AtomicUsize::new(0));
    let count = ended.clone();
    let slow = |cancelled: tokio_util::sync::CancellationToken| async move {
        cancelled.cancelled().await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        count.fetch_add(1, Ordering::SeqCst);
    };
    assert_eq!(pool.try_submit(slow), Ok(()));
    eventually(PATIENCE, "it runs", async || pool.running() == 1).await;
    assert_eq!(pool.try_submit(|_| async { panic!("never starts") }), Ok(()));
    let report = pool.shutdown(Duration::from_millis(50)).await;
    assert_eq!((report.timed_out, report.abandoned), (true, 1));
    assert_eq!((ended.load(Ordering::SeqCst), pool.panicked()), (1, 0));
}

#[tokio::test]
async fn memory_is_flat_whether_1_000_or_100_000_are_submitted() {
    /// What is in memory of submitted jobs, and the most there was.
    #[derive(Default)]
    struct Alive(AtomicUsize, AtomicUsize);
    struct Load(Arc<Alive>);
    impl Load {
        fn new(alive: &Arc<Alive>) -> Self {
            let now = alive.0.fetch_add(1, Ordering::SeqCst) + 1;
            alive.1.fetch_max(now, Ordering::SeqCst);
            Self(alive.clone())
        }
    }
    impl Drop for Load {
        fn drop(&mut self) {
            self.0.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let mut peaks = Vec::new();
    for submitted in [1_000, 100_000] {
        let (pool, alive) = (Pool::new(4, 64), Arc::new(Alive::default()));
        for _ in 0..submitted {
            let load = Load::new(&alive);
            let job = |_| async move { drop(load) };
            assert_eq!(pool.submit(WhenFull::Block, job).await, Ok(Submitted::Accepted));
        }
        pool.shutdown(PATIENCE).await;
        assert_eq!(alive.0.load(Ordering::SeqCst), 0);
        peaks.push(alive.1.load(Ordering::SeqCst));
    }
    // The queue, the runners, and the one that is being submitted.
    assert!(peaks.iter().all(|&peak| peak <= 64 + 4 + 1), "{peaks:?}");
}

#[tokio::test]
async fn memory_of_scheduler_and_worker_is_flat_whether_1_000_or_100_000_jobs_wait() {
    const WAITING: &str = "insert into fencepost.job (job_id, queue_id, kind_id, priority, payload)
            select (select base from fencepost.id_base) + n, queue_id, kind_id, 4, convert_to(repeat('x', 100), 'UTF8')
            from generate_series(50000, 50000 + 99000) n, fencepost.queue, fencepost.kind where fencepost.kind.name = 'a';
        insert into fencepost.ready (position, job_id, queue_id, kind_id, size, priority, attempts, lease_losses, undelivered)
            select job_id, job_id, queue_id, kind_id, 100, 4, 0, 0, 0 from fencepost.job j
            where not exists (select from fencepost.ready r where r.job_id = j.job_id)
                and not exists (select from fencepost.lease l where l.job_id = j.job_id);
        insert into fencepost.tally (queue_id, ready) select min(queue_id), 99001 from fencepost.queue";
    system(async |system| {
        let scheduler = system.scheduler().await;
        let script = "echo x >> started; sleep 50";
        let worker = system.exec_worker(&[&scheduler], &[("a", script)], &["--concurrency", "1", "--grace", "0s"]);
        enqueue_all(&scheduler.client(), jobs("a", 1_000)).await;
        system.wrote("started", 1).await;
        let few = (resident(scheduler.process.id()), resident(worker.id()));
        system.db.run(WAITING).await;
        shows(scheduler.metrics, "fencepost_queue_jobs", &["state=\"ready\""], 100_000.0).await;
        let many = (resident(scheduler.process.id()), resident(worker.id()));
        // A tenth of what 99,000 payloads with the least around them would take.
        assert!(many.0 < few.0 + 4 * 1024 && many.1 < few.1 + 4 * 1024, "kB before {few:?}, after {many:?}");
    })
    .await;
}

/// Memory of a process, in kB.
fn resident(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("has memory");
    line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
}

#[tokio::test]
async fn queue_depth_is_shown_to_alert_and_scale_on_also_when_no_worker_is_there() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        enqueue_all(&client, jobs("a", 7)).await;
        shows(scheduler.metrics, "fencepost_queue_jobs", &["queue=\"default\"", "state=\"ready\""], 7.0).await;
        let age = oldest(scheduler.metrics).await;
        assert!(age.is_some_and(|age| age > 0.0), "{age:?}");
        let stats = client.queue_stats(&[]).await.expect("answers");
        assert_eq!(stats[0].ready, 7);
        let pool = busy(1, 7).await;
        for depth in 1..=7 {
            assert_eq!(pool.0.try_submit(waits(pool.1.clone())), Ok(()));
            assert_eq!(pool.0.depth(), depth);
        }
        pool.1.close();
    })
    .await;
}

async fn oldest(metrics: SocketAddr) -> Option<f64> {
    sample(metrics, "fencepost_queue_oldest_ready_age_seconds", &["queue=\"default\""]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_job_is_processed_exactly_once_across_8_runners_and_500_jobs() {
    let pool = Pool::new(8, 32);
    let counts: Arc<Vec<AtomicUsize>> = Arc::new((0..500).map(|_| AtomicUsize::new(0)).collect());
    for at in 0..500 {
        let counts = counts.clone();
        let job = move |_| async move {
            tokio::task::yield_now().await;
            counts[at].fetch_add(1, Ordering::SeqCst);
        };
        assert_eq!(pool.submit(WhenFull::Block, job).await, Ok(Submitted::Accepted));
    }
    assert!(!pool.shutdown(PATIENCE).await.timed_out);
    assert!(counts.iter().all(|count| count.load(Ordering::SeqCst) == 1));
}

#[tokio::test]
async fn every_job_of_500_is_processed_exactly_once_by_a_worker_of_8_slots() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let runs = Arc::new(AtomicUsize::new(0));
        let count = runs.clone();
        let handler = move |_: Context| {
            count.fetch_add(1, Ordering::SeqCst);
            async { Ok(Success::default()) }
        };
        let worker = Running::start(worker_of(&[&scheduler]).concurrency(8).handler("a", handler));
        enqueue_all(&scheduler.client(), jobs("a", 500)).await;
        system.succeeded(500).await;
        worker.drain().await;
        assert_eq!(runs.load(Ordering::SeqCst), 500);
        assert_eq!(system.db.number("select count(*) from fencepost.attempt_log").await, 0);
    })
    .await;
}

#[tokio::test]
async fn five_jobs_survive_a_sixth_that_panics() {
    let (pool, done) = (Pool::new(1, 6), Arc::new(AtomicUsize::new(0)));
    for at in 0..6 {
        let done = done.clone();
        let job = move |_| async move {
            assert_ne!(at, 2, "this one panics");
            done.fetch_add(1, Ordering::SeqCst);
        };
        assert_eq!(pool.try_submit(job), Ok(()));
    }
    pool.shutdown(PATIENCE).await;
    assert_eq!((done.load(Ordering::SeqCst), pool.panicked()), (5, 1));
}

#[tokio::test]
async fn a_batch_beyond_its_bound_is_refused_at_once_and_stores_nothing() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        client.enqueue_batch(jobs("a", 1_001)).await.expect_err("is refused");
        assert_eq!(system.db.number("select count(*) from fencepost.job").await, 0);
        enqueue(&client, job("a")).await;
    })
    .await;
}
