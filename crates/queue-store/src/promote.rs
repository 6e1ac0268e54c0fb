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
///
/// With `within`, only jobs that became due so lately: the way to them does not lead over the dead index entries of all that
/// were promoted before. A look without it finds what was overlooked.
pub async fn promote(conn: &mut PgConnection, limit: i64, within: Option<Duration>) -> Result<Promoted, StoreError> {
    let rows = sqlx::query!(
        r#"-- promote
        with gone as (
            delete from fencepost.scheduled
            where ctid = any(array(
                select ctid
                from fencepost.scheduled
                where due_at <= now() and due_at > coalesce(now() - $2 * interval '1 second', '-infinity')
                order by due_at
                limit $1
                for update skip locked
            ))
            returning *
        ), readied as (
            insert into fencepost.ready (position, job_id, queue_id, kind_id, size, priority, attempts, lease_losses,
                undelivered)
            select (select base from fencepost.id_base) | (nextval('fencepost.job_seq') & 65535), job_id, queue_id, kind_id, size,
                priority, attempts, lease_losses, undelivered
            from gone
            returning queue_id, priority, kind_id, position
        ), tallied as (
            insert into fencepost.tally (queue_id, scheduled, ready)
            select queue_id, -count(*), count(*)
            from gone
            group by queue_id
        ), moved as (
            select queue_id, priority, kind_id, count(*) as count, min(position) as from
            from readied
            group by queue_id, priority, kind_id
        )
        select
            (
                select ceil(extract(epoch from due_at - now()) * 1000)::bigint
                from fencepost.scheduled
                where due_at > now()
                order by due_at
                limit 1
            ) as next_due_ms,
            m.queue_id as "queue_id?", m.priority as "priority?", m.kind_id as "kind_id?", m.count as "count?",
            m.from as "from?"
        from (values (1)) one
        left join moved m on true"#,
        limit,
        within.map(|within| within.as_secs_f64())
    )
    .fetch_all(conn)
    .await?;
    let next_due_ms = rows.first().and_then(|row| row.next_due_ms);
    let mut promoted = Promoted {
        next_due: next_due_ms.map(|ms| Duration::from_millis(ms.try_into().unwrap_or_default())),
        ..Promoted::default()
    };
    for row in rows {
        let (Some(queue), Some(priority), Some(kind)) = (row.queue_id, row.priority, row.kind_id) else { continue };
        promoted.hints.push(Hint { lane: Lane { queue, priority, kind }, from: row.from.unwrap_or_default() });
        promoted.count += row.count.and_then(|count| usize::try_from(count).ok()).unwrap_or_default();
    }
    if i64::try_from(promoted.count).is_ok_and(|count| count >= limit) {
        // As many as there may be: more may be due already.
        promoted.next_due = Some(Duration::ZERO);
    }
    Ok(promoted)
}
