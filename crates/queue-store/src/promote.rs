//! Promotion: what is due becomes ready.

use std::time::Duration;

use sqlx::PgConnection;

use crate::{Hint, Lane, StoreError};

/// What a promotion did.
#[derive(Debug, Clone, Default)]
pub struct Promoted {
    /// Lanes that got jobs.
    pub hints: Vec<Hint>,
    /// Jobs promoted.
    pub count: usize,
    /// Time until the next one is due, by the clock of the database; zero if one is due already.
    pub next_due: Option<Duration>,
}

/// Makes up to `limit` due jobs ready, the longest due first. What another scheduler has locked is skipped.
pub async fn promote(conn: &mut PgConnection, limit: i64) -> Result<Promoted, StoreError> {
    let moved = sqlx::query!(
        r#"-- promote
        with gone as (
            delete from fencepost.scheduled
            where ctid = any(array(
                select ctid
                from fencepost.scheduled
                where due_at <= now()
                order by due_at
                limit $1
                for update skip locked
            ))
            returning *
        ), readied as (
            insert into fencepost.ready (position, job_id, queue_id, kind_id, size, priority, attempts, lease_losses,
                undelivered)
            select (select fencepost.id_base()) | (nextval('fencepost.job_seq') & 65535), job_id, queue_id, kind_id, size,
                priority, attempts, lease_losses, undelivered
            from gone
            returning queue_id, priority, kind_id, position
        ), tallied as (
            insert into fencepost.tally (queue_id, scheduled, ready)
            select queue_id, -count(*), count(*)
            from gone
            group by queue_id
        )
        select queue_id, priority, kind_id, count(*) as "count!", min(position) as "from!"
        from readied
        group by queue_id, priority, kind_id"#,
        limit
    )
    .fetch_all(&mut *conn)
    .await?;
    let next_due_ms = sqlx::query_scalar!(
        "-- next_due
        select greatest(0, ceil(extract(epoch from due_at - now()) * 1000))::bigint
        from fencepost.scheduled
        order by due_at
        limit 1"
    )
    .fetch_optional(conn)
    .await?
    .flatten();
    Ok(Promoted {
        count: moved.iter().map(|row| usize::try_from(row.count).unwrap_or_default()).sum(),
        hints: moved
            .iter()
            .map(|row| Hint {
                lane: Lane { queue: row.queue_id, priority: row.priority, kind: row.kind_id },
                from: row.from,
            })
            .collect(),
        next_due: next_due_ms.map(|ms| Duration::from_millis(ms.try_into().unwrap_or_default())),
    })
}
