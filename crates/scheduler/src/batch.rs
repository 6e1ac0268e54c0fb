//! Group commit: what arrives while a commit is in flight goes into the next one.
//!
//! No timer: the first request goes at once, and under load batches grow by themselves.

use std::time::Duration;

use queue_store::StoreError;
use telemetry::LogLimit;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::timing::MAX_RETRY_WAIT;

const FIRST_RETRY_WAIT: Duration = Duration::from_millis(50);

/// Takes what is waiting, up to about `rows` rows. `None`: nothing comes any more.
pub async fn next<T>(queue: &mut mpsc::Receiver<T>, rows: usize, size: impl Fn(&T) -> usize) -> Option<Vec<T>> {
    let first = queue.recv().await?;
    Some(with(first, queue, rows, size))
}

/// An item and what is waiting behind it, up to about `rows` rows.
pub fn with<T>(first: T, queue: &mut mpsc::Receiver<T>, rows: usize, size: impl Fn(&T) -> usize) -> Vec<T> {
    let mut taken = size(&first);
    let mut batch = vec![first];
    while taken < rows {
        let Ok(item) = queue.try_recv() else { break };
        taken += size(&item);
        batch.push(item);
    }
    batch
}

/// The waits between tries of one statement while the database is away: doubling, bounded.
#[derive(Debug)]
pub struct Patience(Duration);

impl Default for Patience {
    fn default() -> Self {
        Self(FIRST_RETRY_WAIT)
    }
}

impl Patience {
    /// Waits before the next try.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(MAX_RETRY_WAIT);
    }
}

/// Says that the database is away, a line a second at most in the whole process.
pub fn complain(what: &'static str, error: &StoreError) {
    static LIMIT: std::sync::LazyLock<LogLimit> = std::sync::LazyLock::new(LogLimit::per_second);
    if let Some(suppressed) = LIMIT.allow("database", Instant::now()) {
        let cause = std::error::Error::source(error).map(ToString::to_string);
        tracing::warn!(error = %error, cause, suppressed, "{what} failed");
    }
}
