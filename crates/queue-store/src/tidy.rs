//! Storage kept in order: partitions, dead sessions, old keys, the tally; and the audit.

use std::time::Duration;

use sqlx::{Connection, PgConnection};

use crate::StoreError;

/// What a tidying pass did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tidied {
    /// Tables created ahead.
    pub partitions_created: i32,
    /// Tables dropped.
    pub partitions_dropped: i32,
    /// Dead sessions removed.
    pub sessions_removed: u64,
    /// Idempotency keys and effects removed.
    pub keys_removed: u64,
}

/// Partitions exist for today and so many days more.
const DAYS_AHEAD: i32 = 7;
/// Dead sessions are kept that long after their end, so that their names still show in histories of running jobs.
const SESSION_KEEP: Duration = Duration::from_hours(1);
/// Rows of one deleting statement.
const PAGE: i64 = 1_000;

/// Does one bounded round of tidying. Jobs are kept for `keep_jobs` after they were enqueued, keys for `keep_keys`.
///
/// A partition that a reader holds open is left for the next round. Statements of their own, no transaction.
pub async fn tidy(conn: &mut PgConnection, keep_jobs: Duration, keep_keys: Duration) -> Result<Tidied, StoreError> {
    let partitions_created = sqlx::query_scalar!("select fencepost.create_partitions($1)", DAYS_AHEAD)
        .fetch_one(&mut *conn)
        .await?
        .unwrap_or_default();
    let partitions_dropped = drop_partition(conn, keep_jobs).await?;
    let sessions_removed = remove_sessions(conn).await?;
    remove_kept(conn, keep_jobs).await?;
    let keys_removed = remove_keys(conn, keep_keys).await?;
    fold_tally(conn).await?;
    Ok(Tidied { partitions_created, partitions_dropped, sessions_removed, keys_removed })
}

async fn drop_partition(conn: &mut PgConnection, keep: Duration) -> Result<i32, StoreError> {
    let dropped = sqlx::query_scalar!("select fencepost.drop_partition($1 * interval '1 second')", keep.as_secs_f64())
        .fetch_one(conn)
        .await
        .map_err(StoreError::from);
    match dropped {
        Ok(count) => Ok(count.unwrap_or_default()),
        Err(StoreError::Unavailable(error)) => {
            tracing::info!(%error, "an old partition is in use and is dropped later");
            Ok(0)
        }
        Err(error) => Err(error),
    }
}

async fn remove_sessions(conn: &mut PgConnection) -> Result<u64, StoreError> {
    let removed = sqlx::query!(
        "-- remove_sessions
        with old as materialized (
            select session_no
            from fencepost.worker_session s
            where dead and expires_at < now() - $1 * interval '1 second'
                and not exists (select from fencepost.lease l where l.session_no = s.session_no)
            order by session_no
            limit $2
            for update skip locked
        )
        delete from fencepost.worker_session
        where session_no in (select session_no from old)",
        SESSION_KEEP.as_secs_f64(),
        PAGE
    )
    .execute(conn)
    .await?;
    Ok(removed.rows_affected())
}

/// Removes what was kept past its partition and has ended for long enough by now.
async fn remove_kept(conn: &mut PgConnection, keep: Duration) -> Result<(), StoreError> {
    sqlx::query!(
        "-- remove_kept
        with old as materialized (
            select job_id
            from fencepost.finished_kept
            where finished_at < now() - $1 * interval '1 second'
            limit $2
            for update skip locked
        ), attempts as (
            delete from fencepost.attempt_log_kept
            where job_id = any(array(select job_id from old))
        ), jobs as (
            delete from fencepost.job_kept
            where job_id = any(array(select job_id from old))
        )
        delete from fencepost.finished_kept
        where job_id = any(array(select job_id from old))",
        keep.as_secs_f64(),
        PAGE
    )
    .execute(conn)
    .await?;
    Ok(())
}

async fn remove_keys(conn: &mut PgConnection, keep: Duration) -> Result<u64, StoreError> {
    let keep = keep.as_secs_f64();
    let keys = sqlx::query!(
        "-- remove_keys
        delete from fencepost.idempotency_key
        where ctid = any(array(
            select k.ctid
            from fencepost.idempotency_key k
            where k.job_id < fencepost.id_at(now() - $1 * interval '1 second')
                and not exists (select from fencepost.job j where j.job_id = k.job_id)
            limit $2
            for update skip locked
        ))",
        keep,
        PAGE
    )
    .execute(&mut *conn)
    .await?;
    let effects = sqlx::query!(
        "-- remove_effects
        delete from fencepost.effect
        where ctid = any(array(
            select e.ctid
            from fencepost.effect e
            where e.job_id < fencepost.id_at(now() - $1 * interval '1 second')
                and not exists (select from fencepost.job j where j.job_id = e.job_id)
            limit $2
            for update skip locked
        ))",
        keep,
        PAGE
    )
    .execute(conn)
    .await?;
    Ok(keys.rows_affected() + effects.rows_affected())
}

/// Folds appended changes of the tally into one row per queue. Their sums stay the same at every instant.
async fn fold_tally(conn: &mut PgConnection) -> Result<(), StoreError> {
    sqlx::query!(
        "-- fold_tally
        with gone as (
            delete from fencepost.tally
            where ctid = any(array(select ctid from fencepost.tally limit 100000 for update skip locked))
            returning *
        )
        insert into fencepost.tally (queue_id, scheduled, ready, leased, succeeded, dead, cancelled)
        select queue_id, sum(scheduled), sum(ready), sum(leased), sum(succeeded), sum(dead), sum(cancelled)
        from gone
        group by queue_id"
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Jobs up to which the audit reads everything within its bound.
const MAX_AUDITED_JOBS: i64 = 500_000;

/// Checks the storage's invariants: one line per violation, or `None` if there are too many jobs to look at. Reads
/// everything, in at most 8 s.
pub async fn audit(conn: &mut PgConnection) -> Result<Option<Vec<String>>, StoreError> {
    let jobs = sqlx::query_scalar!(
        r#"-- audited_jobs
        select coalesce(sum(scheduled + ready + leased + succeeded + dead + cancelled), 0)::bigint as "jobs!"
        from fencepost.tally"#
    )
    .fetch_one(&mut *conn)
    .await?;
    if jobs > MAX_AUDITED_JOBS {
        return Ok(None);
    }
    let mut tx = conn.begin().await?;
    sqlx::query!("set local statement_timeout = '8s'").execute(&mut *tx).await?;
    let lines =
        sqlx::query_scalar!(r#"select line as "line!" from fencepost.audit() as a (line)"#).fetch_all(&mut *tx).await?;
    tx.commit().await?;
    Ok(Some(lines))
}
