//! Connections: three pools, so that a flood of one kind of work cannot starve another, each with its bounds set.

use std::fmt;
use std::io::ErrorKind;
use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, PgPool};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::within::{Conn, within};
use crate::{StoreError, scheduler};

/// How to reach the database and how long anything may take there.
#[derive(Clone)]
pub struct StoreConfig {
    /// URL with credentials; never logged.
    pub url: String,
    /// Bound on getting a connection: waiting for a free one, or opening one.
    pub connect_timeout: Duration,
    /// Bound on one statement.
    pub statement_timeout: Duration,
    /// Bound on waiting for a lock.
    pub lock_timeout: Duration,
    /// Bound on an open transaction that does nothing.
    pub idle_in_transaction_timeout: Duration,
    /// Connections for claims, settlements and enqueues.
    pub hot_connections: u32,
    /// Connections for look-ups by people and programs.
    pub read_connections: u32,
}

impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreConfig").field("statement_timeout", &self.statement_timeout).finish_non_exhaustive()
    }
}

/// Connections for sessions, renewal and reaping: one each for the listener, the beat, renewals, take-backs and the reaper,
/// and two for sessions that are opened.
const VITAL_CONNECTIONS: u32 = 7;

/// How many times the usual bound tidying and audits may take.
const LONG_WORK: u32 = 4;

/// How long the server may take to say why it gives no connection. Shorter than what a caller waits besides.
const REASON_BOUND: Duration = Duration::from_millis(500);

/// How much later than the server's own bound an answer may come.
pub const ANSWER_MARGIN: Duration = Duration::from_secs(1);

/// The database: pools by kind of work.
#[derive(Debug, Clone)]
pub struct Store {
    enqueue: PgPool,
    hot: PgPool,
    vital: PgPool,
    read: PgPool,
    bound: Duration,
}

impl Store {
    /// Prepares the pools without connecting: a database that is away at start is waited for.
    pub fn new(config: &StoreConfig) -> Result<Self, StoreError> {
        // Statements are not logged, slow ones neither: while the database is away they would be a line each.
        let base = PgConnectOptions::from_str(&config.url)?.disable_statement_logging();
        let base = base.application_name("fencepost-scheduler").options([
            ("statement_timeout", millis(config.statement_timeout)),
            ("lock_timeout", millis(config.lock_timeout)),
            ("idle_in_transaction_session_timeout", millis(config.idle_in_transaction_timeout)),
            ("jit", "off".to_owned()),
            ("search_path", "fencepost".to_owned()),
        ]);
        // Statements that touch hot tables must go through their indexes whatever the statistics say: right after a burst
        // the planner believes these tables empty, and would read them whole, dead rows included. They are planned once:
        // planning takes longer than storing a job.
        let hot = base.clone().options([
            ("enable_seqscan", "off"),
            ("enable_bitmapscan", "off"),
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            ("enable_sort", "off"),
            ("plan_cache_mode", "force_generic_plan"),
        ]);
        let pool = |size: u32| {
            PgPoolOptions::new()
                .max_connections(size)
                .acquire_timeout(config.connect_timeout)
                .idle_timeout(Duration::from_mins(5))
                // A broken connection shows at its first statement, which the caller repeats: no round trip for a test.
                .test_before_acquire(false)
        };
        // Both draw tokens.
        let leasing = || {
            let pool = pool(config.hot_connections);
            pool.after_connect(|conn, _| Box::pin(scheduler::notice_failover(conn))).connect_lazy_with(hot.clone())
        };
        Ok(Self {
            enqueue: leasing(),
            hot: leasing(),
            vital: pool(VITAL_CONNECTIONS).connect_lazy_with(hot.clone()),
            read: pool(config.read_connections).connect_lazy_with(base),
            bound: config.connect_timeout + config.statement_timeout + ANSWER_MARGIN,
        })
    }

    /// A connection for enqueues; its plans are held to indexes.
    pub async fn enqueue(&self) -> Result<Conn, StoreError> {
        acquire(&self.enqueue).await
    }

    /// A connection for what takes from hot tables: its plans are held to indexes.
    pub async fn hot(&self) -> Result<Conn, StoreError> {
        acquire(&self.hot).await
    }

    /// A connection for sessions, renewal and reaping, which nothing else can exhaust.
    pub async fn vital(&self) -> Result<Conn, StoreError> {
        acquire(&self.vital).await
    }

    pub(crate) fn enqueue_pool(&self) -> &PgPool {
        &self.enqueue
    }

    pub(crate) fn hot_pool(&self) -> &PgPool {
        &self.hot
    }

    pub(crate) fn vital_pool(&self) -> &PgPool {
        &self.vital
    }

    /// A connection for look-ups.
    pub async fn read(&self) -> Result<Conn, StoreError> {
        acquire(&self.read).await
    }

    /// Does a piece of work with connections that it takes here itself, or gives it up when a connection and a statement
    /// have had their time. Whether it took effect is unknown then.
    pub async fn within<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        within(self.bound, work).await
    }

    /// As [`within`](Self::within), for work of many statements.
    pub async fn within_long<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        within(self.bound * LONG_WORK, work).await
    }

    /// Closes all connections, waiting for those in use.
    pub async fn close(&self) {
        for pool in [&self.enqueue, &self.hot, &self.vital, &self.read] {
            pool.close().await;
        }
    }
}

/// A connection of a pool. One that the server refuses is tried again until the time is over, and the pool then says only
/// that it is: the server is asked once more for its reason, by one caller at a time.
pub(crate) async fn acquire(pool: &PgPool) -> Result<Conn, StoreError> {
    static ASKING: Semaphore = Semaphore::const_new(1);
    let error = match pool.acquire().await {
        Ok(conn) => return Ok(Conn::new(conn)),
        Err(error) => error,
    };
    let alone = ASKING.try_acquire().ok().filter(|_| matches!(error, sqlx::Error::PoolTimedOut));
    if alone.is_none() {
        return Err(error.into());
    }
    Err(match timeout(REASON_BOUND, pool.connect_options().connect()).await {
        Ok(Ok(conn)) => {
            // It refuses nobody: all connections of the pool are in use.
            drop(conn);
            error.into()
        }
        Ok(Err(reason)) => reason.into(),
        Err(_) => sqlx::Error::Io(std::io::Error::new(ErrorKind::TimedOut, "the server accepts no connection")).into(),
    })
}

fn millis(bound: Duration) -> String {
    format!("{}ms", bound.as_millis().max(1))
}
