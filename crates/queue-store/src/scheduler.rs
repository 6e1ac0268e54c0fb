//! Schedulers: their beats, and what must be noticed when the database was away or failed over.

use std::time::Duration;

use sqlx::PgConnection;

use crate::StoreError;

/// Identity of one scheduler process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SchedulerId(pub i64);

/// Registers a scheduler. `gap` is the silence of all schedulers after which sessions get one lease time of grace.
pub async fn register_scheduler(conn: &mut PgConnection, name: &str, gap: Duration) -> Result<SchedulerId, StoreError> {
    let id = sqlx::query_scalar!(
        "-- register_scheduler
        insert into fencepost.scheduler (scheduler_id, name, beat_at, resumed_at)
        select nextval('fencepost.scheduler_seq'), $1, now(),
            case when max(beat_at) >= now() - $2 * interval '1 second' then max(resumed_at) else now() end
        from fencepost.scheduler
        returning scheduler_id",
        name,
        gap.as_secs_f64()
    )
    .fetch_one(conn)
    .await?;
    Ok(SchedulerId(id))
}

/// Tells that a scheduler lives, and notes if none had for a while. Returns how many others live.
pub async fn beat(conn: &mut PgConnection, scheduler: SchedulerId, gap: Duration) -> Result<i64, StoreError> {
    let others = sqlx::query_scalar!(
        r#"-- beat
        with seen as (
            select
                max(beat_at) >= now() - $2 * interval '1 second' as lively,
                count(*) filter (where scheduler_id <> $1 and beat_at >= now() - $2 * interval '1 second') as others
            from fencepost.scheduler
        )
        update fencepost.scheduler
        set beat_at = now(), resumed_at = case when seen.lively then resumed_at else now() end
        from seen
        where scheduler_id = $1
        returning seen.others as "others!""#,
        scheduler.0,
        gap.as_secs_f64()
    )
    .fetch_optional(conn)
    .await?;
    others.ok_or_else(|| StoreError::Schema("this scheduler's row is gone: restart it".to_owned()))
}

/// Removes a scheduler that stops. Its sessions live on.
pub async fn retire_scheduler(conn: &mut PgConnection, scheduler: SchedulerId) -> Result<(), StoreError> {
    sqlx::query!("-- retire_scheduler\ndelete from fencepost.scheduler where scheduler_id = $1", scheduler.0)
        .execute(conn)
        .await?;
    Ok(())
}

/// How far the token sequence is skipped ahead after a failover: more than a lost end of the log can hold.
const FAILOVER_SKIP: i64 = 1_000_000_000;

/// Runs on each new connection that claims: after a failover that lost the end of the log, the token sequence may have
/// stepped back, and a token would be given out twice. A new timeline tells; the first to notice skips ahead.
pub(crate) async fn notice_failover(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    let moved = sqlx::query_scalar::<_, bool>(
        "-- timeline_moved
        select to_regclass('fencepost.installation') is not null
            and not pg_is_in_recovery()
            and not exists (
                select from fencepost.installation
                where timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
            )",
    )
    .fetch_one(&mut *conn)
    .await;
    match moved {
        Ok(true) => {}
        Ok(false) => return Ok(()),
        // A schema that is not there yet is no failover. Anything else leaves it open: no claims on this connection.
        Err(sqlx::Error::Database(error)) if matches!(error.code().as_deref(), Some("42P01" | "3F000")) => {
            return Ok(());
        }
        Err(error) => return Err(error),
    }
    sqlx::query!(
        "-- skip_tokens
        with moved as (
            update fencepost.installation
            set timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)
            where timeline <> left(pg_walfile_name(pg_current_wal_lsn()), 8)
            returning timeline
        )
        select setval('fencepost.token_seq', last_value + $1)
        from fencepost.token_seq, moved",
        FAILOVER_SKIP
    )
    .fetch_optional(conn)
    .await?;
    Ok(())
}
