//! Settlement of attempts that succeeded: the fast path, one statement for many.

use queue_core::{JobId, Token};
use sqlx::PgConnection;

use crate::StoreError;

/// The right to settle a job: its lease, as its holder names it. Guessing a token is not enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder {
    /// The job.
    pub job: JobId,
    /// Fencing token of the lease.
    pub token: Token,
    /// Session that the lease was granted to.
    pub session_no: i64,
}

/// A job that its handler is done with.
#[derive(Debug, Clone, Copy)]
pub struct Succeeding<'a> {
    /// Proves the right to settle it.
    pub holder: Holder,
    /// Kept with the job.
    pub result: Option<&'a [u8]>,
    /// Committed once per idempotency key.
    pub effect: Option<&'a [u8]>,
}

/// What became of the effect of a settlement that was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettledEffect {
    /// It had none.
    None,
    /// Committed with it.
    Applied,
    /// The key had an effect already, which stays.
    Repeated,
}

/// Completes jobs: lease to finished, with result and effect, in one statement.
///
/// `rows` must be sorted by holder, so that two batches lock in one order. Answers in order; `None` means that no lease
/// matched and nothing was changed. On [`Store::hot`](crate::Store::hot) only.
///
/// Here as in every statement that meets leases and jobs: `offset 0` keeps a look-up by job apart from the rest. Joined
/// openly, a plan that was made while tables were empty reads them whole for each row, and it is kept when they fill.
pub async fn settle_succeeded(
    conn: &mut PgConnection,
    rows: &[Succeeding<'_>],
) -> Result<Vec<Option<SettledEffect>>, StoreError> {
    debug_assert!(rows.is_sorted_by_key(|row| row.holder));
    let jobs: Vec<i64> = rows.iter().map(|row| row.holder.job.get()).collect();
    let tokens: Vec<i64> = rows.iter().map(|row| row.holder.token.get()).collect();
    let sessions: Vec<i64> = rows.iter().map(|row| row.holder.session_no).collect();
    let results: Vec<Option<&[u8]>> = rows.iter().map(|row| row.result).collect();
    let effects: Vec<Option<&[u8]>> = rows.iter().map(|row| row.effect).collect();
    let settled = sqlx::query!(
        r#"-- settle_succeeded
        with input as materialized (
            select *
            from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bytea[])
                with ordinality as i (job_id, token, session_no, result, effect, ord)
        ), gone as materialized (
            delete from fencepost.lease l
            using input i
            cross join lateral (
                select ctid as tid, token, session_no from fencepost.lease where job_id = i.job_id offset 0
            ) held
            where l.ctid = held.tid and held.token = i.token and held.session_no = i.session_no
            returning l.*, i.result, i.effect, i.ord
        ), done as (
            insert into fencepost.finished (job_id, token, session_no, started_at, finished_at, queue_id, kind_id, state,
                attempts, lease_losses, result)
            select job_id, token, session_no, granted_at, greatest(now(), granted_at), queue_id, kind_id, 'succeeded',
                attempts, lease_losses, result
            from gone
        ), effected as (
            insert into fencepost.effect (key, keyed, job_id, token, committed_at, effect)
            select coalesce(j.idempotency_key, j.job_id::text) as key, j.idempotency_key is not null as keyed, g.job_id,
                g.token, now(), g.effect
            from gone g
            cross join lateral (select job_id, idempotency_key from fencepost.job where job_id = g.job_id offset 0) j
            where g.effect is not null
            order by key, keyed
            on conflict do nothing
            returning job_id
        ), tallied as (
            insert into fencepost.tally (queue_id, leased, succeeded)
            select queue_id, -count(*), count(*)
            from gone
            group by queue_id
        )
        select g.ord as "ord!", g.effect is not null as "has_effect!", g.job_id in (select job_id from effected) as "effected!"
        from gone g"#,
        &jobs,
        &tokens,
        &sessions,
        &results as &[Option<&[u8]>],
        &effects as &[Option<&[u8]>],
    )
    .fetch_all(conn)
    .await?;
    let mut answers = vec![None; rows.len()];
    for row in settled {
        let Ok(at) = usize::try_from(row.ord - 1) else { continue };
        answers[at] = Some(match (row.has_effect, row.effected) {
            (false, _) => SettledEffect::None,
            (true, true) => SettledEffect::Applied,
            (true, false) => SettledEffect::Repeated,
        });
    }
    Ok(answers)
}
