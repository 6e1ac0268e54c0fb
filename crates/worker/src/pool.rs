//! A bounded pool of runners within this process, usable without any scheduler.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit, TryAcquireError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Runners of one pool at most.
pub const MAX_RUNNERS: usize = 10_000;
/// A job that waits although a runner is free gets a thread within this. The runtime may leave a task behind another that
/// blocks its thread until something wakes an idle one.
const NUDGE_AFTER: Duration = Duration::from_millis(10);
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
    runners: TaskTracker,
    shared: Arc<Shared>,
}

/// What runners see. They end once the queue is closed, which happens with the last handle of the pool at the latest.
struct Shared {
    queue: Mutex<Queue>,
    // One permit for each job in the queue. Whoever submits a job wakes a runner that waits for it, and nobody else does:
    // were it another runner, its thread might be blocked by a job before the woken one gets its turn there.
    available: Semaphore,
    // One permit for each free place in the queue.
    room: Semaphore,
    // Given to every job.
    cancel: CancellationToken,
    waiting: AtomicUsize,
    running: AtomicUsize,
    dropped: AtomicU64,
    panicked: AtomicU64,
    abandoned: AtomicU64,
    runners: usize,
    // Whether the nudger is about to look.
    armed: AtomicBool,
    nudger: OnceLock<Thread>,
}

struct Queue {
    jobs: VecDeque<Job>,
    open: bool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Pool {
    /// Starts `runners` runners on the current tokio runtime, with room for `queue` jobs that wait.
    ///
    /// Both are brought within 1 to [`MAX_RUNNERS`] and [`MAX_POOL_QUEUE`].
    pub fn new(runners: usize, queue: usize) -> Self {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue { jobs: VecDeque::new(), open: true }),
            available: Semaphore::new(0),
            room: Semaphore::new(queue.clamp(1, MAX_POOL_QUEUE)),
            cancel: CancellationToken::new(),
            waiting: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            panicked: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            runners: runners.clamp(1, MAX_RUNNERS),
            armed: AtomicBool::new(false),
            nudger: OnceLock::new(),
        });
        let (pool, runtime) = (Arc::downgrade(&shared), Handle::current());
        // Without it jobs that block their threads may hold others up, as in any pool on this runtime.
        if let Ok(nudger) = thread::Builder::new().name("pool-nudge".to_owned()).spawn(move || nudge(&pool, &runtime)) {
            let _ = shared.nudger.set(nudger.thread().clone());
        }
        let runner_tasks = TaskTracker::new();
        for _ in 0..shared.runners {
            runner_tasks.spawn(run(shared.clone()));
        }
        runner_tasks.close();
        Self(Arc::new(Inner { runners: runner_tasks, shared }))
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
                let room = self.0.shared.room.acquire().await.map_err(|_| SubmitError::ShutDown)?;
                self.0.shared.push(boxed(job))?;
                room.forget();
                Ok(Submitted::Accepted)
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
        match self.0.shared.room.try_acquire() {
            Ok(room) => {
                self.0.shared.push(boxed(job))?;
                room.forget();
                Ok(())
            }
            Err(TryAcquireError::NoPermits) => Err(SubmitError::Full),
            Err(TryAcquireError::Closed) => Err(SubmitError::ShutDown),
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
        self.0.shared.close();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a job into its place in the queue.
    fn push(&self, job: Job) -> Result<(), SubmitError> {
        let mut queue = self.queue();
        if !queue.open {
            return Err(SubmitError::ShutDown);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        queue.jobs.push_back(job);
        drop(queue);
        self.available.add_permits(1);
        if !self.armed.swap(true, Ordering::SeqCst)
            && let Some(nudger) = self.nudger.get()
        {
            nudger.unpark();
        }
        Ok(())
    }

    /// Whether a job waits for a runner although one is free.
    fn is_stuck(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0 && self.running.load(Ordering::SeqCst) < self.runners
    }

    /// The next job; `None` once there will be no more.
    async fn next(&self) -> Option<Job> {
        loop {
            let open = self.available.acquire().await.map(SemaphorePermit::forget).is_ok();
            let job = self.queue().jobs.pop_front();
            match job {
                Some(job) => {
                    self.waiting.fetch_sub(1, Ordering::Relaxed);
                    self.room.add_permits(1);
                    return Some(job);
                }
                None if open => {}
                None => return None,
            }
        }
    }

    fn close(&self) {
        self.queue().open = false;
        // Nobody waits for room any more, and runners take what is left and end.
        self.room.close();
        self.available.close();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(nudger) = self.nudger.get() {
            nudger.unpark();
        }
    }
}

/// Looks a little after jobs were submitted whether one of them is stuck, and has the runtime wake an idle thread then, which
/// takes over what another cannot get to. Ends with the pool.
fn nudge(pool: &Weak<Shared>, runtime: &Handle) {
    while pool.strong_count() > 0 {
        thread::park();
        thread::park_timeout(NUDGE_AFTER);
        let Some(pool) = pool.upgrade() else { return };
        pool.armed.store(false, Ordering::SeqCst);
        if pool.is_stuck() {
            runtime.spawn(async {});
            // Look again.
            pool.armed.store(true, Ordering::SeqCst);
            thread::current().unpark();
        }
    }
}

async fn run(pool: Arc<Shared>) {
    while let Some(job) = pool.next().await {
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
mod tests;
