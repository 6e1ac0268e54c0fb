//! Leases that were just deleted, on the way to where their jobs go.

use std::collections::HashMap;
use std::time::Duration;

use queue_core::{Counters, JobId, RetryPolicy, Token};
use sqlx::PgConnection;

use crate::{Lane, StoreError};

/// A row of `lease`, as a `delete … returning` gives it.
#[derive(Debug)]
pub(crate) struct LeaseRow {
    pub(crate) job_id: i64,
    pub(crate) token: i64,
    pub(crate) session_no: i64,
    pub(crate) started_at_us: i64,
    pub(crate) queue_id: i32,
    pub(crate) kind_id: i32,
    pub(crate) size: i32,
    pub(crate) priority: i16,
    pub(crate) attempts: i16,
    pub(crate) lease_losses: i16,
    pub(crate) undelivered: i16,
}

/// A deleted lease with its job's policy: the job is nowhere until it is placed, in the same transaction.
#[derive(Debug, Clone)]
pub(crate) struct GoneLease {
    pub(crate) job: JobId,
    pub(crate) token: Token,
    pub(crate) session_no: i64,
    pub(crate) started_at_us: i64,
    pub(crate) lane: Lane,
    pub(crate) size: i32,
    pub(crate) used: Counters,
    pub(crate) policy: RetryPolicy,
}

/// Adds the policies that hold for the jobs now. A job without a row of its own, which the audit reports, gets the defaults.
pub(crate) async fn with_policies(conn: &mut PgConnection, rows: Vec<LeaseRow>) -> Result<Vec<GoneLease>, StoreError> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let jobs: Vec<i64> = rows.iter().map(|row| row.job_id).collect();
    let mut policies = policies(conn, &jobs).await?;
    let gone = |row: LeaseRow| {
        Some(GoneLease {
            job: JobId::try_from(row.job_id).ok()?,
            token: Token::try_from(row.token).ok()?,
            session_no: row.session_no,
            started_at_us: row.started_at_us,
            lane: Lane { queue: row.queue_id, priority: row.priority, kind: row.kind_id },
            size: row.size,
            used: counters(row.attempts, row.lease_losses, row.undelivered),
            policy: policies.remove(&row.job_id).unwrap_or_default(),
        })
    };
    Ok(rows.into_iter().filter_map(gone).collect())
}

async fn policies(conn: &mut PgConnection, jobs: &[i64]) -> Result<HashMap<i64, RetryPolicy>, StoreError> {
    let rows = sqlx::query!(
        r#"-- policies
        select p.job_id as "job_id!", p.max_attempts as "max_attempts!", p.max_lease_losses as "max_lease_losses!",
            p.backoff_base_ms as "backoff_base_ms!", p.backoff_factor as "backoff_factor!",
            p.backoff_cap_ms as "backoff_cap_ms!", p.jitter as "jitter!"
        from unnest($1::bigint[]) i (job_id)
        cross join lateral (select * from fencepost.job_policy where job_id = i.job_id offset 0) p"#,
        jobs
    )
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let policy = RetryPolicy {
                max_attempts: row.max_attempts.try_into().unwrap_or_default(),
                max_lease_losses: row.max_lease_losses.try_into().unwrap_or_default(),
                backoff_base: stored_millis(row.backoff_base_ms),
                backoff_factor: row.backoff_factor,
                backoff_cap: stored_millis(row.backoff_cap_ms),
                jitter: row.jitter,
            };
            (row.job_id, policy)
        })
        .collect())
}

pub(crate) fn stored_millis(millis: i64) -> Duration {
    Duration::from_millis(millis.try_into().unwrap_or_default())
}

pub(crate) fn counters(attempts: i16, lease_losses: i16, undelivered: i16) -> Counters {
    let number = |stored: i16| u32::try_from(stored).unwrap_or_default();
    Counters { attempts: number(attempts), lease_losses: number(lease_losses), undelivered: number(undelivered) }
}
