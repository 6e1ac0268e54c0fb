//! A bound on work with the database that also holds when its packets vanish.
//!
//! The server's bounds end a statement that is slow. A connection on which nothing arrives any more knows of no bound: the
//! wait for its answer ends here, and it is closed instead of going back to its pool, where the look whether it still
//! works would wait again.

use std::io::{Error, ErrorKind};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres};
use tokio::time::timeout;

use crate::StoreError;

tokio::task_local! {
    /// Whether the work that runs here was given up.
    static GIVEN_UP: Arc<AtomicBool>;
}

/// A connection of one of the pools. Goes back to its pool, or is closed if the work it was taken for was given up.
#[derive(Debug)]
pub struct Conn {
    // Always there, until the drop.
    inner: PoolConnection<Postgres>,
    given_up: Option<Arc<AtomicBool>>,
}

impl Conn {
    pub(crate) fn new(inner: PoolConnection<Postgres>) -> Self {
        Self { inner, given_up: GIVEN_UP.try_with(Arc::clone).ok() }
    }

    /// From now on it serves the work that runs here.
    pub(crate) fn take_for_this(&mut self) {
        self.given_up = GIVEN_UP.try_with(Arc::clone).ok();
    }
}

impl Deref for Conn {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.inner
    }
}

impl DerefMut for Conn {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.inner
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        if self.given_up.as_ref().is_some_and(|given_up| given_up.load(Ordering::Relaxed)) {
            self.inner.close_on_drop();
        }
    }
}

/// Does work with the database, or gives it up when the time is over. Then whether it took effect is unknown.
pub(crate) async fn within<T>(
    bound: Duration,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let given_up = Arc::new(AtomicBool::new(false));
    let mut work = Box::pin(GIVEN_UP.scope(given_up.clone(), work));
    // Dropped before the work: in time to tell its connections, also if the caller goes away.
    let mut abandon = Abandon { given_up, armed: true };
    let done = timeout(bound, &mut work).await;
    abandon.armed = done.is_err();
    done.unwrap_or_else(|_| {
        let silence = Error::new(ErrorKind::TimedOut, format!("the database did not answer within {bound:?}"));
        Err(StoreError::Unavailable(sqlx::Error::Io(silence)))
    })
}

struct Abandon {
    given_up: Arc<AtomicBool>,
    armed: bool,
}

impl Drop for Abandon {
    fn drop(&mut self) {
        if self.armed {
            self.given_up.store(true, Ordering::Relaxed);
        }
    }
}
