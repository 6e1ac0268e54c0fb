//! Looking for what nobody told: the guarantee behind every hint, in one statement.

use std::time::Duration;

use sqlx::PgConnection;

use crate::{Lane, Registered, StoreError};

/// How long a job may be due to be seen. The way to older ones leads over the dead index entries of all that were promoted.
const OVERDUE: Duration = Duration::from_mins(1);

/// What there is to know, whoever brought it about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Of the lanes asked for, those that hold a ready job.
    pub ready: Vec<Lane>,
    /// How much is registered.
    pub registered: Registered,
    /// Time until the next scheduled job is due, by the clock of the database; zero if one is due, though not long since.
    pub next_due: Option<Duration>,
    /// Time since the last reaping pass, by the clock of the database; `None` if there was none.
    pub passed_ago: Option<Duration>,
}

/// Looks whether these lanes hold a ready job at or above the given position, and at all the rest. One statement.
pub async fn look_out(conn: &mut PgConnection, lanes: &[(Lane, i64)]) -> Result<Seen, StoreError> {
    let queues: Vec<i32> = lanes.iter().map(|(lane, _)| lane.queue).collect();
    let priorities: Vec<i16> = lanes.iter().map(|(lane, _)| lane.priority).collect();
    let kinds: Vec<i32> = lanes.iter().map(|(lane, _)| lane.kind).collect();
    let lows: Vec<i64> = lanes.iter().map(|(_, low)| *low).collect();
    let row = sqlx::query!(
        r#"-- look_out
        select
            array(
                select l.ord
                from unnest($1::integer[], $2::smallint[], $3::integer[], $4::bigint[])
                    with ordinality as l (queue_id, priority, kind_id, low, ord)
                cross join lateral (
                    select
                    from fencepost.ready r
                    where r.queue_id = l.queue_id and r.priority = l.priority and r.kind_id = l.kind_id
                        and r.position >= l.low
                    order by r.queue_id, r.priority, r.kind_id, r.position
                    limit 1
                ) first
            ) as "ready!: Vec<i64>",
            (select count(*) from fencepost.queue) as "queues!",
            (select count(*) from fencepost.kind) as "kinds!",
            (select count(*) from fencepost.lane) as "lanes!",
            (
                select greatest(0, ceil(extract(epoch from due_at - now()) * 1000))::bigint
                from fencepost.scheduled
                where due_at > now() - $5 * interval '1 second'
                order by due_at
                limit 1
            ) as next_due_ms,
            (
                select case when isfinite(passed_at) then (extract(epoch from now() - passed_at) * 1000)::bigint end
                from fencepost.maintenance
            ) as passed_ago_ms"#,
        &queues,
        &priorities,
        &kinds,
        &lows,
        OVERDUE.as_secs_f64()
    )
    .fetch_one(conn)
    .await?;
    let time = |ms: i64| Duration::from_millis(ms.try_into().unwrap_or_default());
    Ok(Seen {
        ready: row.ready.iter().filter_map(|ord| Some(lanes.get(usize::try_from(ord - 1).ok()?)?.0)).collect(),
        registered: Registered { queues: row.queues, kinds: row.kinds, lanes: row.lanes },
        next_due: row.next_due_ms.map(time),
        passed_ago: row.passed_ago_ms.map(time),
    })
}
