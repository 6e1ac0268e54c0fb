//! The loop that makes due jobs ready.

use std::sync::Arc;
use std::time::Duration;

use queue_store::{Promoted, Store, StoreError, promote};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::batch;
use crate::ready::Ready;

/// Jobs of one promotion.
const PAGE: i64 = 500;
/// Longest sleep: what another scheduler stored for sooner is seen then.
const MAX_SLEEP: Duration = Duration::from_secs(1);
/// Shortest sleep, so that jobs due in single milliseconds go together.
const MIN_SLEEP: Duration = Duration::from_millis(5);

/// The way to the loop.
#[derive(Clone, Default)]
pub struct Handle(Arc<Notify>);

impl Handle {
    /// Something may be due sooner than the loop knows.
    pub fn look(&self) {
        self.0.notify_one();
    }
}

/// Promotes until told to stop.
pub async fn run(store: Store, ready: Ready, wake: Handle, stop: CancellationToken) -> anyhow::Result<()> {
    let mut sleep = Duration::ZERO;
    while !stop.is_cancelled() {
        tokio::select! {
            _ = timeout(sleep, wake.0.notified()) => {}
            () = stop.cancelled() => break,
        }
        sleep = match store.within(run_once(&store)).await {
            Ok(promoted) => {
                ready.tell(promoted.hints);
                promoted.next_due.unwrap_or(MAX_SLEEP).clamp(MIN_SLEEP, MAX_SLEEP)
            }
            Err(error) => {
                batch::complain("a promotion", &error);
                MAX_SLEEP
            }
        };
    }
    Ok(())
}

async fn run_once(store: &Store) -> Result<Promoted, StoreError> {
    promote(&mut *store.enqueue().await?, PAGE).await
}
