//! The one operation of the guard.

use sqlx::PgConnection;

use crate::{GuardError, MAX_KEY_CHARS};

/// Whether the caller is the one to make the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a change that was applied already must not be made again"]
pub enum Applied {
    /// Nobody has applied this effect. Make the change now, in the same transaction.
    First,
    /// The effect is committed (or made earlier in this transaction). Change nothing, and report the job as succeeded.
    Already,
}

/// Claims the effect `key` for the transaction that `conn` is in.
///
/// Waits while another transaction holds the same key; bound that with `lock_timeout`. Outside of a transaction the claim
/// would be committed before the change is made, so pass a transaction.
///
/// # Errors
/// [`GuardError::Stale`] if a newer token came with the key: the caller has lost its lease. The transaction is still usable,
/// but should be rolled back.
pub async fn apply_once(conn: &mut PgConnection, key: &str, token: i64) -> Result<Applied, GuardError> {
    check(key, token)?;
    if claim(conn, key, token).await? {
        return Ok(Applied::First);
    }
    let seen = newest_token(conn, key).await?;
    if token < seen {
        return Err(GuardError::Stale { token, seen });
    }
    if token > seen {
        remember(conn, key, token).await?;
    }
    Ok(Applied::Already)
}

fn check(key: &str, token: i64) -> Result<(), GuardError> {
    if key.is_empty() || key.contains('\0') || key.chars().count() > MAX_KEY_CHARS {
        return Err(GuardError::InvalidKey);
    }
    if token <= 0 {
        return Err(GuardError::InvalidToken(token));
    }
    Ok(())
}

/// Inserts the row, or locks the one that is there: a conflict locks its row even where the condition keeps it unchanged.
/// So nobody can change or remove it before this transaction ends, and reading it in another statement is safe.
async fn claim(conn: &mut PgConnection, key: &str, token: i64) -> Result<bool, GuardError> {
    let inserted = sqlx::query(
        "/* effect_guard::claim */
         insert into effect_guard (key, token)
         values ($1, $2)
         on conflict (key) do update
         set token = effect_guard.token
         where false",
    )
    .bind(key)
    .bind(token)
    .execute(conn)
    .await?
    .rows_affected();
    Ok(inserted == 1)
}

async fn newest_token(conn: &mut PgConnection, key: &str) -> Result<i64, GuardError> {
    let seen = sqlx::query_scalar(
        "/* effect_guard::newest_token */
         select token
         from effect_guard
         where key = $1",
    )
    .bind(key)
    .fetch_one(conn)
    .await?;
    Ok(seen)
}

async fn remember(conn: &mut PgConnection, key: &str, token: i64) -> Result<(), GuardError> {
    sqlx::query(
        "/* effect_guard::remember */
         update effect_guard
         set token = $2
         where key = $1",
    )
    .bind(key)
    .bind(token)
    .execute(conn)
    .await?;
    Ok(())
}
