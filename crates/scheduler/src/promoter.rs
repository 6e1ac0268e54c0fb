//! The loop that makes due jobs ready.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use queue_store::{Promoted, Store, StoreError, promote};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::batch;
use crate::ready::Ready;

/// Jobs of one promotion.
const PAGE: i64 = 500;
/// How often everything that is due is looked for, and not only what became due since.
const FULL_INTERVAL: Duration = Duration::from_mins(1);
/// Wait before a promotion that failed is tried again.
const RETRY_WAIT: Duration = Duration::from_secs(1);
/// Shortest wait, so that jobs due in single milliseconds go together.
const MIN_WAIT: Duration = Duration::from_millis(5);

/// The way to the loop.
#[derive(Clone, Default)]
pub struct Handle(Arc<Shared>);

#[derive(Default)]
struct Shared {
    wake: Notify,
    /// When to look: never later than when the first job that was told of is due.
    due: Mutex<Option<Instant>>,
}

impl Handle {
    /// Something may be due at any time.
    pub fn look(&self) {
        self.due(Instant::now());
    }

    /// A job is due then. What other schedulers stored for sooner, they promote; if they die, a look tells.
    pub fn due(&self, at: Instant) {
        let mut due = self.0.due.lock().unwrap_or_else(PoisonError::into_inner);
        if due.is_none_or(|due| at < due) {
            *due = Some(at);
            self.0.wake.notify_one();
        }
    }

    /// Waits until something may be due.
    async fn wait(&self) {
        loop {
            let due = *self.0.due.lock().unwrap_or_else(PoisonError::into_inner);
            tokio::select! {
                () = until(due) => break,
                () = self.0.wake.notified() => {}
            }
        }
        *self.0.due.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Promotes until told to stop.
pub async fn run(store: Store, ready: Ready, handle: Handle, stop: CancellationToken) -> anyhow::Result<()> {
    let mut next_full = Instant::now();
    loop {
        tokio::select! {
            () = handle.wait() => {}
            () = sleep_until(next_full) => {}
            () = stop.cancelled() => return Ok(()),
        }
        let now = Instant::now();
        let full = now >= next_full;
        let within = if full { None } else { Some(2 * FULL_INTERVAL) };
        match store.within(run_once(&store, within)).await {
            Ok(promoted) => {
                if full && promoted.count < usize::try_from(PAGE).unwrap_or_default() {
                    next_full = now + FULL_INTERVAL;
                }
                ready.tell(promoted.hints);
                if let Some(due) = promoted.next_due {
                    handle.due(Instant::now() + due.max(MIN_WAIT));
                }
            }
            Err(error) => {
                batch::complain("a promotion", &error);
                next_full = Instant::now() + RETRY_WAIT;
            }
        }
    }
}

async fn run_once(store: &Store, within: Option<Duration>) -> Result<Promoted, StoreError> {
    promote(&mut *store.hot().await?, PAGE, within).await
}
