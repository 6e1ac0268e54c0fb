//! Settlement of attempts that did not succeed: failed, released, snoozed.

use queue_core::{AttemptEnd, Next, after};
use sqlx::PgConnection;

use crate::lease::{GoneLease, LeaseRow, with_policies};
use crate::place::{Placement, place};
use crate::{Holder, Lane, Lows, StoreError};

/// An attempt that ended without success, as its holder reports it.
#[derive(Debug, Clone)]
pub struct Ending {
    /// Proves the right to settle it.
    pub holder: Holder,
    /// Failed, released or snoozed.
    pub end: AttemptEnd,
    /// Whether another attempt may help. Matters for failures.
    pub retryable: bool,
    /// Retry-after of a failure, duration of a snooze.
    pub wait: Option<std::time::Duration>,
    /// Error code, for programs.
    pub code: Option<String>,
    /// Error text or reason, for people.
    pub text: Option<String>,
    /// Uniform in 0..1, for the jitter.
    pub chance: f64,
}

/// Settles attempts that did not succeed; returns where each job went and its lane, `None` where no lease matched.
///
/// `rows` must be sorted by holder. Several statements: the caller owns the transaction and must commit it. On
/// [`Store::hot`](crate::Store::hot) only.
pub async fn settle_endings(
    conn: &mut PgConnection,
    rows: &[Ending],
    lows: Lows<'_>,
) -> Result<Vec<Option<(Next, Lane)>>, StoreError> {
    debug_assert!(rows.is_sorted_by_key(|row| row.holder));
    let jobs: Vec<i64> = rows.iter().map(|row| row.holder.job.get()).collect();
    let tokens: Vec<i64> = rows.iter().map(|row| row.holder.token.get()).collect();
    let sessions: Vec<i64> = rows.iter().map(|row| row.holder.session_no).collect();
    let gone = sqlx::query_as!(
        LeaseRow,
        r#"-- settle_endings
        with input as materialized (
            select *
            from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as i (job_id, token, session_no)
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
        &sessions
    )
    .fetch_all(&mut *conn)
    .await?;
    let gone = with_policies(conn, gone).await?;
    let mut placements = Vec::with_capacity(gone.len());
    let mut answers = vec![None; rows.len()];
    for lease in gone {
        let holder = Holder { job: lease.job, token: lease.token, session_no: lease.session_no };
        let Ok(at) = rows.binary_search_by_key(&holder, |row| row.holder) else { continue };
        let placement = ending_of(lease, &rows[at]);
        answers[at] = Some((placement.next, placement.lease.lane));
        placements.push(placement);
    }
    place(conn, &placements, lows).await?;
    Ok(answers)
}

fn ending_of(lease: GoneLease, row: &Ending) -> Placement {
    Placement {
        next: after(row.end, lease.used, &lease.policy, row.retryable, row.wait, row.chance),
        lease,
        end: row.end,
        code: row.code.clone(),
        error: row.text.clone(),
    }
}
