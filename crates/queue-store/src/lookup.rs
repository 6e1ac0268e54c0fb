//! What became of a lease that is no longer held: a settlement that comes again is told apart from one that comes too late.

use sqlx::PgConnection;

use crate::{Holder, StoreError};

/// What is known of a lease that no settlement matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Past {
    /// Its holder settled it before.
    Settled,
    /// It was lost, or never was.
    Lost,
}

/// Looks up what became of leases, in order. Every token that was used up has left a trace.
pub async fn look_up(conn: &mut PgConnection, holders: &[Holder]) -> Result<Vec<Past>, StoreError> {
    let jobs: Vec<i64> = holders.iter().map(|holder| holder.job.get()).collect();
    let tokens: Vec<i64> = holders.iter().map(|holder| holder.token.get()).collect();
    let sessions: Vec<i64> = holders.iter().map(|holder| holder.session_no).collect();
    let settled = sqlx::query_scalar!(
        r#"-- look_up
        select
            exists (
                select from fencepost.finished f
                where f.job_id = i.job_id and f.token = i.token and f.session_no = i.session_no
            ) or exists (
                select from fencepost.attempt_log a
                where a.job_id = i.job_id and a.token = i.token and a.session_no = i.session_no
                    and a.ended in ('failed', 'released', 'snoozed')
            ) as "settled!"
        from unnest($1::bigint[], $2::bigint[], $3::bigint[]) with ordinality as i (job_id, token, session_no, ord)
        order by i.ord"#,
        &jobs,
        &tokens,
        &sessions
    )
    .fetch_all(conn)
    .await?;
    Ok(settled.into_iter().map(|settled| if settled { Past::Settled } else { Past::Lost }).collect())
}
