//! Taking back what dead sessions held, under the one maintenance lease.

use std::time::Duration;

use queue_core::{AttemptEnd, SessionId, after};
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

/// Ends a pass if no dead session holds a lease any more: notes it, and with `release` gives the maintenance lease back.
/// Returns whether the pass has ended; `None` if the caller has lost the maintenance lease.
pub async fn finish_pass(conn: &mut PgConnection, warden: Warden, release: bool) -> Result<Option<bool>, StoreError> {
    let finished = sqlx::query_scalar!(
        r#"-- finish_pass
        with reapable as materialized (
            select exists (
                select
                from fencepost.worker_session s
                cross join lateral (select from fencepost.lease where session_no = s.session_no limit 1) l
                where s.dead
            ) as any
        )
        update fencepost.maintenance m
        set passed_at = case when r.any then m.passed_at else now() end,
            holder = case when $2 and not r.any then '' else m.holder end,
            expires_at = case when $2 and not r.any then '-infinity' else m.expires_at end
        from reapable r
        where m.token = $1
        returning not r.any as "finished!""#,
        warden.0,
        release
    )
    .fetch_optional(conn)
    .await?;
    Ok(finished)
}

/// A session that was marked dead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiredSession {
    /// The session.
    pub session_no: i64,
    /// Identity of the process incarnation.
    pub id: SessionId,
    /// Name of its worker.
    pub worker: String,
    /// Leases that it still has.
    pub leases: i64,
    /// How late it was marked.
    pub late: Duration,
}

/// What an expiry pass did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expired {
    /// Sessions marked dead.
    pub sessions: Vec<ExpiredSession>,
    /// Whether none may be marked now, because no scheduler could renew a while ago.
    pub held_back: bool,
}

impl Expired {
    /// How late the latest of them was marked.
    pub fn lag(&self) -> Duration {
        self.sessions.iter().map(|session| session.late).max().unwrap_or_default()
    }
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
    let rows = sqlx::query!(
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
            returning session_no, now() - expires_at as late
        )
        select
            guard.warden as "warden!",
            guard.open as "open!",
            e.session_no as "session_no?",
            w.session_id as "session_id?",
            w.name as "name?",
            (select count(*) from fencepost.lease l where l.session_no = e.session_no) as "leases!",
            coalesce((extract(epoch from e.late) * 1000)::bigint, 0) as "late_ms!"
        from guard
        left join (expired e join fencepost.worker w on w.session_no = e.session_no) on true
        order by e.session_no"#,
        warden.0,
        limit,
        gap.as_secs_f64(),
        ttl.as_secs_f64()
    )
    .fetch_all(conn)
    .await?;
    let Some(guard) = rows.first().filter(|guard| guard.warden) else { return Ok(None) };
    let held_back = !guard.open;
    let sessions = rows.into_iter().filter_map(|row| {
        Some(ExpiredSession {
            session_no: row.session_no?,
            id: SessionId::try_from(&row.session_id?[..]).ok()?,
            worker: row.name?,
            leases: row.leases,
            late: Duration::from_millis(row.late_ms.try_into().unwrap_or_default()),
        })
    });
    Ok(Some(Expired { sessions: sessions.collect(), held_back }))
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
