//! Claim: ready jobs become leases, in one short statement that commits before any work starts.

use std::time::Duration;

use bytes::Bytes;
use queue_core::{Counters, JobId, MAX_BATCH, Token};
use sqlx::PgConnection;

use crate::lease::{counters, stored_millis};
use crate::{Lane, Owner, StoreError};

/// Free slots of one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRequest {
    /// Proves that this scheduler serves the session.
    pub owner: Owner,
    /// How many jobs it has room for.
    pub slots: u32,
}

/// What to claim, for whom.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// Lanes to take from, with the position to start at. Rows below it are not seen.
    pub lanes: Vec<(Lane, i64)>,
    /// Free slots; jobs are dealt out one by one in this order.
    pub slots: Vec<SlotRequest>,
    /// Bound on the bytes of payloads and headers. One job is always taken.
    pub max_bytes: i64,
    /// Whether no other scheduler claims. Then rows are not locked before they are deleted, which spares a record of the log
    /// each. If another one claims all the same, the two wait for each other and find less; none takes what the other did.
    pub alone: bool,
}

/// What a claim brought.
#[derive(Debug, Clone, Default)]
pub struct Claim {
    /// The new leases.
    pub jobs: Vec<Claimed>,
    /// Whether there may be more where these came from.
    pub more: bool,
    /// Slots of sessions that this scheduler still serves. None: it was replaced in all of them.
    pub room: i64,
    /// Position that an insert of this instant would get: what is below it by more than the bound on statements is settled.
    pub now: i64,
}

/// One job under a new lease.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// The job.
    pub job: JobId,
    /// Its new fencing token.
    pub token: Token,
    /// Session that holds the lease.
    pub session_no: i64,
    /// Where it was.
    pub lane: Lane,
    /// Its position there.
    pub position: i64,
    /// What it has used of its budgets.
    pub used: Counters,
    /// Input of the handler.
    pub payload: Bytes,
    /// Handed to the handler.
    pub headers: Option<serde_json::Value>,
    /// Handed to the handler.
    pub key: Option<String>,
    /// W3C trace context of the caller.
    pub traceparent: Option<String>,
    /// Bound on the attempt's run time.
    pub timeout: Duration,
    /// Attempts it may use in all.
    pub max_attempts: u32,
}

/// Claims jobs for the slots of sessions that this scheduler still serves.
///
/// Never more than the slots, and at most [`queue_core::MAX_BATCH`]. Tokens are the number of the claim, from the
/// sequence, and the place in it: a later claim of the same job has a larger one. On [`Store::hot`](crate::Store::hot)
/// only: the plan goes through the lane's index and deletes by the `ctid` of the rows that the same statement has found; by
/// key it would read the lane's dead entries again.
#[expect(clippy::too_many_lines, reason = "one statement")]
pub async fn claim(conn: &mut PgConnection, request: &ClaimRequest) -> Result<Claim, StoreError> {
    let queues: Vec<i32> = request.lanes.iter().map(|(lane, _)| lane.queue).collect();
    let priorities: Vec<i16> = request.lanes.iter().map(|(lane, _)| lane.priority).collect();
    let kinds: Vec<i32> = request.lanes.iter().map(|(lane, _)| lane.kind).collect();
    let lows: Vec<i64> = request.lanes.iter().map(|(_, low)| *low).collect();
    let sessions: Vec<i64> = request.slots.iter().map(|slot| slot.owner.session_no).collect();
    let epochs: Vec<i32> = request.slots.iter().map(|slot| slot.owner.epoch).collect();
    let owners: Vec<i64> = request.slots.iter().map(|slot| slot.owner.scheduler.0).collect();
    // The place in a claim has 10 bits of the token.
    let mut left = MAX_BATCH;
    let mut up_to_a_batch = |slots: u32| {
        let taken = left.min(usize::try_from(slots).unwrap_or(usize::MAX));
        left -= taken;
        i32::try_from(taken).unwrap_or_default()
    };
    let slots: Vec<i32> = request.slots.iter().map(|slot| up_to_a_batch(slot.slots)).collect();
    let rows = sqlx::query!(
        r#"-- claim
        with slot as materialized (
            select coalesce(array_agg(s.session_no order by n, i.ord), '{}') as session_no, count(*) as room
            from unnest($1::bigint[], $2::integer[], $3::bigint[], $4::integer[])
                with ordinality as i (session_no, epoch, owner, slots, ord)
            join fencepost.worker_session s
                on s.session_no = i.session_no and s.epoch = i.epoch and s.owner = i.owner and not s.dead
            cross join lateral generate_series(1, i.slots) n
        ), picked as materialized (
            select r.tid, row_number() over arrival as n, sum(r.size) over arrival as bytes
            from unnest($5::integer[], $6::smallint[], $7::integer[], $8::bigint[]) l (queue_id, priority, kind_id, low)
            cross join lateral (
                select *
                from (
                    select ctid as tid, position, job_id, size
                    from fencepost.ready
                    where queue_id = l.queue_id and priority = l.priority and kind_id = l.kind_id and position >= l.low
                        and not $10
                    order by queue_id, priority, kind_id, position, job_id
                    limit (select room from slot)
                    for update skip locked
                ) locked
                union all
                select *
                from (
                    select ctid as tid, position, job_id, size
                    from fencepost.ready
                    where queue_id = l.queue_id and priority = l.priority and kind_id = l.kind_id and position >= l.low
                        and $10
                    order by queue_id, priority, kind_id, position, job_id
                    limit (select room from slot)
                ) unlocked
            ) r
            window arrival as (order by r.position, r.job_id rows unbounded preceding)
        ), granted as materialized (
            delete from fencepost.ready r
            using (
                select tid, n
                from picked
                where n <= (select room from slot) and (bytes <= $9 or n = 1)
            ) p
            where r.ctid = p.tid
            returning r.*, (select nextval('fencepost.token_seq')) << 10 | p.n as token,
                (select session_no from slot)[p.n] as session_no
        ), leased as (
            insert into fencepost.lease (job_id, token, session_no, granted_at, queue_id, kind_id, size, priority,
                attempts, lease_losses, undelivered)
            select job_id, token, session_no, now(), queue_id, kind_id, size, priority, attempts, lease_losses,
                undelivered
            from granted
        ), tallied as (
            insert into fencepost.tally (queue_id, ready, leased)
            select queue_id, -count(*), count(*)
            from granted
            group by queue_id
        )
        select
            (select count(*) from picked) > (select count(*) from granted)
                or (select count(*) from granted) >= (select room from slot) as "more!",
            (select room from slot) as "room!", (select fencepost.id_at(now())) as "now!",
            g.job_id as "job_id?", g.token as "token?", g.session_no as "session_no?", g.position as "position?",
            g.queue_id as "queue_id?", g.priority as "priority?", g.kind_id as "kind_id?",
            g.attempts as "attempts?", g.lease_losses as "lease_losses?", g.undelivered as "undelivered?",
            j.payload as "payload?", j.headers as "headers?", j.idempotency_key as "key?", j.traceparent as "traceparent?",
            coalesce(j.timeout_ms, q.timeout_ms) as "timeout_ms?",
            coalesce(j.max_attempts, q.max_attempts) as "max_attempts?"
        from (select 1) one
        left join granted g on true
        left join lateral (
            select payload, headers, idempotency_key, traceparent, timeout_ms, max_attempts
            from fencepost.job
            where job_id = g.job_id
            offset 0
        ) j on true
        left join fencepost.queue q on q.queue_id = g.queue_id"#,
        &sessions,
        &epochs,
        &owners,
        &slots,
        &queues,
        &priorities,
        &kinds,
        &lows,
        request.max_bytes,
        request.alone,
    )
    .fetch_all(conn)
    .await?;
    let mut claim = Claim::default();
    for row in rows {
        claim.more = row.more;
        claim.room = row.room;
        claim.now = row.now;
        let granted = || {
            Some(Claimed {
                job: JobId::try_from(row.job_id?).ok()?,
                token: Token::try_from(row.token?).ok()?,
                session_no: row.session_no?,
                lane: Lane { queue: row.queue_id?, priority: row.priority?, kind: row.kind_id? },
                position: row.position?,
                used: counters(row.attempts?, row.lease_losses?, row.undelivered?),
                payload: row.payload?.into(),
                headers: row.headers,
                key: row.key,
                traceparent: row.traceparent,
                timeout: stored_millis(row.timeout_ms?),
                max_attempts: row.max_attempts?.try_into().unwrap_or_default(),
            })
        };
        claim.jobs.extend(granted());
    }
    Ok(claim)
}
