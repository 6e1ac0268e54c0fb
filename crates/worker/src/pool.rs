//! A bounded pool of runners within this process, usable without any scheduler.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Runners of one pool at most.
pub const MAX_RUNNERS: usize = 10_000;
/// Jobs that one pool may buffer at most.
pub const MAX_POOL_QUEUE: usize = 1_000_000;

type Job = Box<dyn FnOnce(CancellationToken) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// What to do with a job when the queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// Wait for room.
    Block,
    /// Drop the job and count it.
    Drop,
    /// Refuse it at once.
    Reject,
}

/// What became of a job that was not refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submitted {
    /// It will run.
    Accepted,
    /// It was dropped, as [`WhenFull::Drop`] asks.
    Dropped,
}

/// Why a job was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full.
    #[error("the pool's queue is full")]
    Full,
    /// The pool takes no more jobs.
    #[error("the pool was shut down and takes no more jobs")]
    ShutDown,
}

/// How a shutdown went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolReport {
    /// The timeout passed before everything was done: the rest was cancelled.
    pub timed_out: bool,
    /// Jobs that were still buffered at that time and were never started.
    pub abandoned: u64,
}

/// A fixed number of runners behind a bounded queue.
///
/// The number of jobs that run at once is decided here, never by who submits. A job that panics ends alone; its runner
/// lives on.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use worker::{Pool, WhenFull};
///
/// let pool = Pool::new(2, 10);
/// pool.submit(WhenFull::Block, |cancelled| async move {
///     tokio::select! {
///         () = cancelled.cancelled() => {}
///         () = async { println!("work") } => {}
///     }
/// })
/// .await?;
/// let report = pool.shutdown(std::time::Duration::from_secs(5)).await;
/// assert!(!report.timed_out);
/// # Ok::<(), worker::SubmitError>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    // None once the pool is shut down.
    queue: Mutex<Option<mpsc::Sender<Job>>>,
    // Fires when intake ends, so that nobody waits for room any more.
    closed: CancellationToken,
    runners: TaskTracker,
    shared: Arc<Shared>,
}

/// What runners see. The queue is not in it: it must close when the last handle of the pool is dropped.
#[derive(Default)]
struct Shared {
    // Given to every job.
    cancel: CancellationToken,
    waiting: AtomicUsize,
    running: AtomicUsize,
    dropped: AtomicU64,
    panicked: AtomicU64,
    abandoned: AtomicU64,
}

impl Pool {
    /// Starts `runners` runners on the current tokio runtime, with room for `queue` jobs that wait.
    ///
    /// Both are brought within 1 to [`MAX_RUNNERS`] and [`MAX_POOL_QUEUE`].
    pub fn new(runners: usize, queue: usize) -> Self {
        let (sender, receiver) = mpsc::channel(queue.clamp(1, MAX_POOL_QUEUE));
        let shared = Arc::new(Shared::default());
        let runner_tasks = TaskTracker::new();
        let receiver = Arc::new(AsyncMutex::new(receiver));
        for _ in 0..runners.clamp(1, MAX_RUNNERS) {
            runner_tasks.spawn(run(receiver.clone(), shared.clone()));
        }
        runner_tasks.close();
        Self(Arc::new(Inner {
            queue: Mutex::new(Some(sender)),
            closed: CancellationToken::new(),
            runners: runner_tasks,
            shared,
        }))
    }

    /// Hands a job over; `when_full` says what happens if there is no room.
    ///
    /// The job is given a token that fires when it should stop.
    ///
    /// Errors: [`SubmitError::Full`] with [`WhenFull::Reject`] only, [`SubmitError::ShutDown`].
    pub async fn submit<F, R>(&self, when_full: WhenFull, job: F) -> Result<Submitted, SubmitError>
    where
        F: FnOnce(CancellationToken) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        match when_full {
            WhenFull::Reject => self.try_submit(job).map(|()| Submitted::Accepted),
            WhenFull::Drop => match self.try_submit(job) {
                Err(SubmitError::Full) => {
                    self.0.shared.dropped.fetch_add(1, Ordering::Relaxed);
                    Ok(Submitted::Dropped)
                }
                other => other.map(|()| Submitted::Accepted),
            },
            WhenFull::Block => {
                let sender = self.sender()?;
                tokio::select! {
                    biased;
                    () = self.0.closed.cancelled() => Err(SubmitError::ShutDown),
                    room = sender.reserve() => {
                        let room = room.map_err(|_| SubmitError::ShutDown)?;
                        self.0.shared.waiting.fetch_add(1, Ordering::Relaxed);
                        room.send(boxed(job));
                        Ok(Submitted::Accepted)
                    }
                }
            }
        }
    }

    /// Hands a job over if there is room, from any thread.
    ///
    /// Errors: [`SubmitError::Full`], [`SubmitError::ShutDown`].
    pub fn try_submit<F, R>(&self, job: F) -> Result<(), SubmitError>
    where
        F: FnOnce(CancellationToken) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        match self.sender()?.try_reserve() {
            Ok(room) => {
                self.0.shared.waiting.fetch_add(1, Ordering::Relaxed);
                room.send(boxed(job));
                Ok(())
            }
            Err(TrySendError::Full(())) => Err(SubmitError::Full),
            Err(TrySendError::Closed(())) => Err(SubmitError::ShutDown),
        }
    }

    /// Jobs that wait for a runner: the signal to alert and to scale on.
    pub fn depth(&self) -> usize {
        self.0.shared.waiting.load(Ordering::Relaxed)
    }

    /// Jobs that run now.
    pub fn running(&self) -> usize {
        self.0.shared.running.load(Ordering::Relaxed)
    }

    /// Jobs dropped so far, as [`WhenFull::Drop`] asks.
    pub fn dropped(&self) -> u64 {
        self.0.shared.dropped.load(Ordering::Relaxed)
    }

    /// Jobs that panicked so far.
    pub fn panicked(&self) -> u64 {
        self.0.shared.panicked.load(Ordering::Relaxed)
    }

    /// Stops intake, finishes what is buffered and running, and returns when every job has.
    ///
    /// After `timeout` the jobs' tokens fire and buffered jobs are abandoned; then it still waits for those that run,
    /// however long they take. Called twice, both calls wait.
    pub async fn shutdown(&self, timeout: Duration) -> PoolReport {
        self.close();
        let in_time = tokio::time::timeout(timeout, self.0.runners.wait()).await.is_ok();
        if !in_time {
            self.0.shared.cancel.cancel();
            self.0.runners.wait().await;
        }
        PoolReport { timed_out: !in_time, abandoned: self.0.shared.abandoned.load(Ordering::Relaxed) }
    }

    /// Takes no more jobs. Those that are buffered still run.
    pub fn close(&self) {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.0.closed.cancel();
    }

    fn sender(&self) -> Result<mpsc::Sender<Job>, SubmitError> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or(SubmitError::ShutDown)
    }
}

async fn run(queue: Arc<AsyncMutex<mpsc::Receiver<Job>>>, pool: Arc<Shared>) {
    loop {
        // One runner waits for the next job, the others for their turn to.
        let next = queue.lock().await.recv().await;
        let Some(job) = next else { return };
        // Letting go of the queue woke the next runner, in a slot of this thread that no other thread takes from. It has
        // to run before a job that may block this thread, or the jobs behind it would wait although threads are idle.
        tokio::task::yield_now().await;
        pool.waiting.fetch_sub(1, Ordering::Relaxed);
        if pool.cancel.is_cancelled() {
            pool.abandoned.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        pool.running.fetch_add(1, Ordering::Relaxed);
        let cancel = pool.cancel.clone();
        // The call itself is within the future, so that a panic before the first await is caught as well.
        if AssertUnwindSafe(async move { job(cancel).await }).catch_unwind().await.is_err() {
            pool.panicked.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("a job of the pool panicked");
        }
        pool.running.fetch_sub(1, Ordering::Relaxed);
    }
}

fn boxed<F, R>(job: F) -> Job
where
    F: FnOnce(CancellationToken) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    Box::new(move |cancel| Box::pin(job(cancel)))
}

#[cfg(test)]
mod tests {
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
}
