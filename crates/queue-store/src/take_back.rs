//! Taking leases back on the scheduler's own account: fenced by owner and epoch of the session.

use queue_core::{AttemptEnd, JobId, Token, after};
use sqlx::PgConnection;

use crate::lease::{LeaseRow, with_policies};
use crate::place::{Placement, place};
use crate::{Death, Lane, Lows, Owner, StoreError};

/// A lease that its session's worker does not hold, or has held for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unheld {
    /// The job.
    pub job: JobId,
    /// Token of the lease.
    pub token: Token,
    /// Proves that the caller serves the session.
    pub owner: Owner,
}

/// What was taken back.
#[derive(Debug, Clone, Default)]
pub struct Taken {
    /// The leases that were, with their lanes.
    pub leases: Vec<(JobId, Token, Lane)>,
    /// Of these: jobs that are dead now.
    pub dead: Vec<Death>,
}

/// Takes leases back. `end` is undelivered, timed out or released.
///
/// `rows` must be sorted. Several statements: the caller owns the transaction and must commit it. On
/// [`Store::hot`](crate::Store::hot) only.
pub async fn take_back(
    conn: &mut PgConnection,
    rows: &[Unheld],
    end: AttemptEnd,
    reason: &str,
    lows: Lows<'_>,
) -> Result<Taken, StoreError> {
    debug_assert!(rows.is_sorted());
    let jobs: Vec<i64> = rows.iter().map(|row| row.job.get()).collect();
    let tokens: Vec<i64> = rows.iter().map(|row| row.token.get()).collect();
    let sessions: Vec<i64> = rows.iter().map(|row| row.owner.session_no).collect();
    let epochs: Vec<i32> = rows.iter().map(|row| row.owner.epoch).collect();
    let owners: Vec<i64> = rows.iter().map(|row| row.owner.scheduler.0).collect();
    let gone = sqlx::query_as!(
        LeaseRow,
        r#"-- take_back
        with input as materialized (
            select i.job_id, i.token, i.session_no
            from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::integer[], $5::bigint[])
                as i (job_id, token, session_no, epoch, owner)
            join fencepost.worker_session s
                on s.session_no = i.session_no and s.epoch = i.epoch and s.owner = i.owner and not s.dead
        )
        delete from fencepost.lease l
        using input i
        cross join lateral (
            select ctid as tid, token, session_no from fencepost.lease where job_id = i.job_id offset 0
        ) held
        where l.ctid = held.tid and held.token = i.token and held.session_no = i.session_no
        returning l.job_id, l.token, l.session_no, l.queue_id, l.kind_id, l.size, l.priority, l.attempts,
            l.lease_losses, l.undelivered,
            (extract(epoch from l.granted_at) * 1000000)::bigint as "started_at_us!""#,
        &jobs,
        &tokens,
        &sessions,
        &epochs,
        &owners
    )
    .fetch_all(&mut *conn)
    .await?;
    let gone = with_policies(conn, gone).await?;
    let leases = gone.iter().map(|lease| (lease.job, lease.token, lease.lane)).collect();
    let placements: Vec<Placement> = gone
        .into_iter()
        .map(|lease| Placement {
            next: after(end, lease.used, &lease.policy, true, None, 0.0),
            lease,
            end,
            code: None,
            error: Some(reason.to_owned()),
        })
        .collect();
    place(conn, &placements, lows).await?;
    Ok(Taken { leases, dead: placements.iter().filter_map(Placement::death).collect() })
}
