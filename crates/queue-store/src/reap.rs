//! Taking back what dead sessions held, under the one maintenance lease.

use std::time::Duration;

use queue_core::{AttemptEnd, after};
use sqlx::PgConnection;

use crate::lease::{LeaseRow, with_policies};
use crate::place::{Placement, place};
use crate::{Death, Lane, Lows, StoreError};

/// The right to do maintenance: the fencing token of the maintenance lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Warden(pub i64);

/// Takes or renews the maintenance lease. Returns the caller's right, if it has it now, and the name of the holder.
pub async fn acquire_maintenance(
    conn: &mut PgConnection,
    holder: &str,
    current: Option<Warden>,
    ttl: Duration,
) -> Result<(Option<Warden>, String), StoreError> {
    let taken = sqlx::query!(
        "-- acquire_maintenance
        update fencepost.maintenance
        set holder = $1, expires_at = now() + $3 * interval '1 second',
            token = case when token = $2 then token else nextval('fencepost.token_seq') end
        where token = $2 or expires_at < now()
        returning token, holder",
        holder,
        current.map_or(-1, |warden| warden.0),
        ttl.as_secs_f64()
    )
    .fetch_optional(&mut *conn)
    .await?;
    if let Some(row) = taken {
        return Ok((Some(Warden(row.token)), row.holder));
    }
    let holder = sqlx::query_scalar!("select holder from fencepost.maintenance").fetch_one(conn).await?;
    Ok((None, holder))
}

/// Gives the maintenance lease back. Returns whether the caller held it.
pub async fn release_maintenance(conn: &mut PgConnection, warden: Warden) -> Result<bool, StoreError> {
    let released = sqlx::query!(
        "-- release_maintenance
        update fencepost.maintenance
        set expires_at = '-infinity', holder = ''
        where token = $1",
        warden.0
    )
    .execute(conn)
    .await?;
    Ok(released.rows_affected() == 1)
}

/// Notes that a pass was made, so that schedulers need not make one themselves. Returns whether the caller may go on.
pub async fn note_pass(conn: &mut PgConnection, warden: Warden) -> Result<bool, StoreError> {
    let noted =
        sqlx::query!("-- note_pass\nupdate fencepost.maintenance set passed_at = now() where token = $1", warden.0)
            .execute(conn)
            .await?;
    Ok(noted.rows_affected() == 1)
}

/// Time since the last pass, by the clock of the database; `None` if there was none.
pub async fn passed_ago(conn: &mut PgConnection) -> Result<Option<Duration>, StoreError> {
    let ms = sqlx::query_scalar!(
        "-- passed_ago
        select case when isfinite(passed_at) then (extract(epoch from now() - passed_at) * 1000)::bigint end
        from fencepost.maintenance"
    )
    .fetch_one(conn)
    .await?;
    Ok(ms.map(|ms| Duration::from_millis(ms.try_into().unwrap_or_default())))
}

/// What an expiry pass did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Expired {
    /// Sessions marked dead.
    pub sessions: usize,
    /// How late the latest of them was marked.
    pub lag: Duration,
    /// Whether none may be marked now, because no scheduler could renew a while ago.
    pub held_back: bool,
}

/// Marks up to `limit` sessions dead whose time is over. `None` if the caller has lost the maintenance lease.
///
/// Each row is checked again under its lock, so a renewal that has just committed wins. `gap` is the silence of all
/// schedulers after which sessions get `ttl` of grace.
pub async fn expire_sessions(
    conn: &mut PgConnection,
    warden: Warden,
    limit: i64,
    ttl: Duration,
    gap: Duration,
) -> Result<Option<Expired>, StoreError> {
    let row = sqlx::query!(
        r#"-- expire_sessions
        with guard as materialized (
            select
                exists (select from fencepost.maintenance where token = $1 and expires_at > now()) as warden,
                coalesce(max(beat_at) >= now() - $3 * interval '1 second'
                    and max(resumed_at) < now() - $4 * interval '1 second', false) as open
            from fencepost.scheduler
        ), expired as (
            update fencepost.worker_session
            set dead = true
            where session_no = any(array(
                    select session_no
                    from fencepost.worker_session
                    where not dead and expires_at < now() and (select warden and open from guard)
                    order by session_no
                    limit $2
                    for update skip locked
                ))
                and not dead and expires_at < now()
            returning now() - expires_at as late
        )
        select
            (select warden from guard) as "warden!",
            (select open from guard) as "open!",
            count(*) as "sessions!",
            coalesce((extract(epoch from max(late)) * 1000)::bigint, 0) as "lag_ms!"
        from expired"#,
        warden.0,
        limit,
        gap.as_secs_f64(),
        ttl.as_secs_f64()
    )
    .fetch_one(conn)
    .await?;
    Ok(row.warden.then(|| Expired {
        sessions: row.sessions.try_into().unwrap_or_default(),
        lag: Duration::from_millis(row.lag_ms.try_into().unwrap_or_default()),
        held_back: !row.open,
    }))
}

/// What a reaping pass did.
#[derive(Debug, Clone, Default)]
pub struct Reaped {
    /// Leases taken back.
    pub leases: usize,
    /// Of these: jobs that are dead now.
    pub dead: Vec<Death>,
    /// Lanes that got ready jobs.
    pub lanes: Vec<Lane>,
}

/// Takes back up to `limit` leases of dead sessions. `None` if the caller has lost the maintenance lease.
///
/// What others have locked is skipped and does not count against the limit, so it hides nothing behind it. Several
/// statements: the caller owns the transaction and must commit it. On [`Store::hot`](crate::Store::hot) only.
pub async fn reap_page(
    conn: &mut PgConnection,
    warden: Warden,
    limit: i64,
    lows: Lows<'_>,
) -> Result<Option<Reaped>, StoreError> {
    // Held to the end of the transaction: another warden can take over only between two pages.
    let warden = sqlx::query_scalar!(
        r#"-- check_warden
        select 1 as "one!"
        from fencepost.maintenance
        where token = $1 and expires_at > now()
        for share"#,
        warden.0
    )
    .fetch_optional(&mut *conn)
    .await?;
    if warden.is_none() {
        return Ok(None);
    }
    let gone = sqlx::query_as!(
        LeaseRow,
        r#"-- reap_page
        with abandoned as materialized (
            select l.tid
            from fencepost.worker_session s
            cross join lateral (
                select ctid as tid from fencepost.lease where session_no = s.session_no limit $1 for update skip locked
            ) l
            where s.dead
            limit $1
        )
        delete from fencepost.lease l
        where l.ctid = any(array(select tid from abandoned))
        returning l.job_id, l.token, l.session_no, l.queue_id, l.kind_id, l.size, l.priority, l.attempts,
            l.lease_losses, l.undelivered,
            (extract(epoch from l.granted_at) * 1000000)::bigint as "started_at_us!""#,
        limit
    )
    .fetch_all(&mut *conn)
    .await?;
    let gone = with_policies(conn, gone).await?;
    let placements: Vec<Placement> = gone
        .into_iter()
        .map(|lease| Placement {
            next: after(AttemptEnd::Lost, lease.used, &lease.policy, true, None, 0.0),
            lease,
            end: AttemptEnd::Lost,
            code: Some("worker_lost".to_owned()),
            error: Some("the worker died or fell silent, its session expired".to_owned()),
        })
        .collect();
    place(conn, &placements, lows).await?;
    let mut lanes: Vec<Lane> = placements.iter().map(|placement| placement.lease.lane).collect();
    lanes.sort_unstable();
    lanes.dedup();
    Ok(Some(Reaped { leases: placements.len(), dead: placements.iter().filter_map(Placement::death).collect(), lanes }))
}
