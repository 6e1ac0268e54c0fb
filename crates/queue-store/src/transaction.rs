//! A transaction that a caller without sqlx can hold. Dropped without a commit, it is rolled back.

use sqlx::{Connection, PgConnection, Postgres};

use crate::StoreError;

/// An open transaction.
#[derive(Debug)]
pub struct Transaction<'c>(sqlx::Transaction<'c, Postgres>);

impl<'c> Transaction<'c> {
    /// Begins.
    pub async fn begin(conn: &'c mut PgConnection) -> Result<Self, StoreError> {
        Ok(Self(conn.begin().await?))
    }

    /// The connection to work on.
    pub fn conn(&mut self) -> &mut PgConnection {
        &mut self.0
    }

    /// Makes it true. If this fails, whether it is true is unknown.
    pub async fn commit(self) -> Result<(), StoreError> {
        Ok(self.0.commit().await?)
    }
}
