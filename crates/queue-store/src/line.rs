//! A connection that a writer keeps between its batches.
//!
//! A pool asks each connection that comes back for a sign of life: a round trip for every batch.

use sqlx::PgPool;

use crate::connect::acquire;
use crate::within::Conn;
use crate::{Store, StoreError};

/// A writer's place for its connection.
#[derive(Debug)]
pub struct Line {
    pool: PgPool,
    kept: Option<Conn>,
}

impl Line {
    pub(crate) fn new(pool: PgPool) -> Self {
        Self { pool, kept: None }
    }

    /// Takes the connection out, or a fresh one of its pool. Give it back by [`keep`](Self::keep) after success only: one
    /// that met an error is dropped, and its pool finds out what it is still good for.
    pub async fn take(&mut self) -> Result<Conn, StoreError> {
        match self.kept.take() {
            Some(mut conn) => {
                conn.take_for_this();
                Ok(conn)
            }
            None => acquire(&self.pool).await,
        }
    }

    /// Keeps the connection for the next batch.
    pub fn keep(&mut self, conn: Conn) {
        self.kept = Some(conn);
    }
}

impl Store {
    /// A line for a writer on hot tables; see [`hot`](Self::hot).
    pub fn hot_line(&self) -> Line {
        Line::new(self.hot_pool().clone())
    }

    /// A line for the writer of new jobs; see [`enqueue`](Self::enqueue).
    pub fn enqueue_line(&self) -> Line {
        Line::new(self.enqueue_pool().clone())
    }
}
