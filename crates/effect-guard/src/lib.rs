//! Applies the effect of a job once, in your own PostgreSQL.
//!
//! Fencepost delivers at least once: a job may run again after its worker died, or after an answer was lost. A handler
//! that changes your database calls [`apply_once`] in the same transaction as its change:
//!
//! ```no_run
//! use effect_guard::{Applied, GuardError, apply_once};
//!
//! # async fn charge(pool: sqlx::PgPool, key: &str, token: i64) -> Result<(), GuardError> {
//! let mut tx = pool.begin().await?;
//! if apply_once(&mut tx, key, token).await? == Applied::First {
//!     sqlx::query("update account set balance = balance - 10 where id = 7").execute(&mut *tx).await?;
//! }
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! `key` is the job's idempotency key (for a job that has none, a text made of its id) and `token` the fencing token of
//! the lease under which the handler runs. The table is in [`DDL`], and as a file in `effect_guard.sql`.
//!
//! # What holds
//!
//! - The row of the guard and your change stand or fall together. A rollback leaves no trace of either.
//! - Callers with the same key take turns: the second waits until the first has committed or rolled back.
//! - A token older than the newest one that came with the key is refused, because its holder has lost its lease.
//! - A newer token on a key that was applied finds [`Applied::Already`] and is remembered, so that from then on the
//!   holders of the tokens before it are told that they are stale. It is not refused: it is the rightful holder of a job
//!   whose effect is there, and it must be able to finish the job.
//! - The guard knows only tokens that came to it. A stale worker that comes first, before any newer one, applies the
//!   effect: that is still once, and the newer one finds it.
//! - A job with several effects gives each a key of its own, such as `key` + `"/invoice"`. A transaction that guards several
//!   keys takes them in sorted order, or it may deadlock with another one.
//! - Under `repeatable read` and `serializable` the loser of a race gets SQLSTATE 40001 and begins its transaction again,
//!   as with every other conflict there. The default, `read committed`, needs nothing.

mod apply;
mod error;

pub use apply::{Applied, apply_once};
pub use error::GuardError;

/// The table that the guard needs, as SQL for your migrations. May be applied again.
pub const DDL: &str = include_str!("../effect_guard.sql");
/// Characters of a key: the 256 of an idempotency key, and room for suffixes. A btree entry may have 2,704 bytes, so a key
/// of this length that consists of wide characters can still be refused by PostgreSQL.
pub const MAX_KEY_CHARS: usize = 1024;
