//! Why an effect was not applied.

/// Refusal or failure of the guard. Roll the transaction back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// A newer lease has come with this key: the caller has lost its own and must stop.
    #[error("fencing token {token} is stale: {seen} has been seen for this key")]
    Stale {
        /// The caller's token.
        token: i64,
        /// The newest token that came with the key.
        seen: i64,
    },
    /// The key is empty, too long or contains a NUL character.
    #[error("key must have 1 to {max} characters and no NUL", max = crate::MAX_KEY_CHARS)]
    InvalidKey,
    /// The token is not positive, so no lease ever had it.
    #[error("fencing token must be positive, is {0}")]
    InvalidToken(i64),
    /// The database refused or could not be reached. The transaction cannot go on.
    #[error("database error in the effect guard")]
    Database(#[from] sqlx::Error),
}
