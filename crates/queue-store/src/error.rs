//! What a caller branches on when a statement fails.

/// Why the storage did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached, is overloaded or gave up on the statement. The same call may be repeated; whether a
    /// commit under way happened is unknown.
    #[error("the database is not available")]
    Unavailable(#[source] sqlx::Error),
    /// The database refused the data of at least one row.
    #[error("the database refused the data")]
    Data(#[source] sqlx::Error),
    /// A bound on a number of rows is reached. Names what is bounded.
    #[error("{0}")]
    Full(&'static str),
    /// The schema is not the one that this program knows.
    #[error("{0}")]
    Schema(String),
    /// Anything else: a fault of the program or of the installation.
    #[error("the database failed")]
    Other(#[source] sqlx::Error),
}

impl StoreError {
    /// Whether the same call may succeed later.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    /// Whether the database certainly did nothing, so that the same call can be repeated at once.
    pub fn is_aborted(&self) -> bool {
        let Self::Unavailable(sqlx::Error::Database(error)) = self else { return false };
        matches!(error.code().as_deref(), Some("40001" | "40P01"))
    }

    /// Whether somebody held a lock for too long. The database certainly did nothing.
    pub fn is_locked(&self) -> bool {
        let Self::Unavailable(sqlx::Error::Database(error)) = self else { return false };
        error.code().as_deref() == Some("55P03")
    }

    /// Whether a row of the batch is to blame, so that the batch should be split.
    pub fn is_data(&self) -> bool {
        matches!(self, Self::Data(_))
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(database) => match database.code().as_deref().unwrap_or_default() {
                // Connection, resources, operator intervention, lock and statement timeouts, deadlock, serialisation,
                // a read-only server (a standby that was just demoted).
                code if code.starts_with("08") || code.starts_with("53") || code.starts_with("57P") => {
                    Self::Unavailable(error)
                }
                "57014" | "55P03" | "40001" | "40P01" | "25006" | "25P03" | "58000" | "58030" => {
                    Self::Unavailable(error)
                }
                code if code.starts_with("22") || code.starts_with("23") || code.starts_with("54") => Self::Data(error),
                _ => Self::Other(error),
            },
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            // What a connection says that broke in the middle of a message.
            | sqlx::Error::Protocol(_) => Self::Unavailable(error),
            _ => Self::Other(error),
        }
    }
}
