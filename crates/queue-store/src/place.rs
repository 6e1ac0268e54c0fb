//! Where jobs go whose attempt ended other than well: one statement for any mixture of destinations.

use queue_core::{AttemptEnd, DeadReason, JobId, Next, Token};
use sqlx::PgConnection;

use crate::enqueue::as_millis;
use crate::lease::GoneLease;
use crate::{Lane, StoreError};

/// The lowest position that may hold a ready job in a lane; 0 where nothing is known of it.
pub type Lows<'a> = &'a (dyn Fn(Lane) -> i64 + Sync);

/// Where one job goes, and what is written into its history.
#[derive(Debug, Clone)]
pub(crate) struct Placement {
    pub(crate) lease: GoneLease,
    pub(crate) next: Next,
    pub(crate) end: AttemptEnd,
    pub(crate) code: Option<String>,
    pub(crate) error: Option<String>,
}

impl Placement {
    pub(crate) fn death(&self) -> Option<Death> {
        Death::of(self.lease.job, self.lease.token, self.lease.lane, self.next)
    }
}

/// A job that is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Death {
    /// The job.
    pub job: JobId,
    /// Token of its last lease.
    pub token: Token,
    /// Where it waited.
    pub lane: Lane,
    /// Why.
    pub reason: DeadReason,
}

impl Death {
    /// The death of a job, if that is what comes next.
    pub fn of(job: JobId, token: Token, lane: Lane, next: Next) -> Option<Self> {
        let Next::Dead(_, reason) = next else { return None };
        Some(Self { job, token, lane, reason })
    }
}

/// Writes the history of ended attempts and puts each job where it goes.
///
/// A job that becomes ready goes in front of its lane, at the position of the first job there: no scheduler's low mark is
/// above that, so none can overlook it.
pub(crate) async fn place(conn: &mut PgConnection, placements: &[Placement], lows: Lows<'_>) -> Result<(), StoreError> {
    if placements.is_empty() {
        return Ok(());
    }
    let mut c = Columns::default();
    for placement in placements {
        c.push(placement, lows);
    }
    sqlx::query!(
        "-- place
        with input as materialized (
            select *
            from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::integer[], $6::smallint[],
                $7::integer[], $8::bigint[], $9::integer[], $10::smallint[], $11::smallint[], $12::smallint[],
                $13::smallint[], $14::text[], $15::text[], $16::text[], $17::bigint[], $18::text[])
                as i (job_id, token, session_no, started_at_us, queue_id, priority, kind_id, low, size, number, attempts,
                    lease_losses, undelivered, ended, error_code, error, delay_ms, dead_reason)
        ), logged as (
            insert into fencepost.attempt_log (job_id, token, session_no, started_at, ended_at, number, ended, error_code,
                error)
            select job_id, token, session_no, to_timestamp(started_at_us / 1000000.0), now(), number,
                ended::fencepost.attempt_end, error_code, error
            from input
        ), readied as (
            insert into fencepost.ready (position, job_id, queue_id, kind_id, size, priority, attempts, lease_losses,
                undelivered)
            select
                coalesce(
                    (select r.position
                    from fencepost.ready r
                    where r.queue_id = i.queue_id and r.priority = i.priority and r.kind_id = i.kind_id
                        and r.position >= i.low
                    order by r.queue_id, r.priority, r.kind_id, r.position
                    limit 1),
                    (select base from fencepost.id_base) | (nextval('fencepost.job_seq') & 65535)),
                job_id, queue_id, kind_id, size, priority, attempts, lease_losses, undelivered
            from input i
            where delay_ms is null and dead_reason is null
        ), deferred as (
            insert into fencepost.scheduled (job_id, due_at, queue_id, kind_id, size, priority, attempts, lease_losses,
                undelivered)
            select job_id, now() + delay_ms * interval '1 millisecond', queue_id, kind_id, size, priority, attempts,
                lease_losses, undelivered
            from input
            where delay_ms is not null
        ), died as (
            insert into fencepost.dead (job_id, token, died_at, queue_id, kind_id, size, priority, attempts,
                lease_losses, undelivered, reason)
            select job_id, token, now(), queue_id, kind_id, size, priority, attempts, lease_losses, undelivered,
                dead_reason
            from input
            where dead_reason is not null
        )
        insert into fencepost.tally (queue_id, leased, ready, scheduled, dead)
        select queue_id, -count(*), count(*) filter (where delay_ms is null and dead_reason is null),
            count(delay_ms), count(dead_reason)
        from input
        group by queue_id",
        &c.job,
        &c.token,
        &c.session,
        &c.started_at_us,
        &c.queue,
        &c.priority,
        &c.kind,
        &c.low,
        &c.size,
        &c.number,
        &c.attempts,
        &c.lease_losses,
        &c.undelivered,
        &c.ended as &[&str],
        &c.code as &[Option<&str>],
        &c.error as &[Option<&str>],
        &c.delay_ms as &[Option<i64>],
        &c.dead_reason as &[Option<&str>],
    )
    .execute(conn)
    .await?;
    Ok(())
}

#[derive(Default)]
struct Columns<'a> {
    job: Vec<i64>,
    token: Vec<i64>,
    session: Vec<i64>,
    started_at_us: Vec<i64>,
    queue: Vec<i32>,
    priority: Vec<i16>,
    kind: Vec<i32>,
    low: Vec<i64>,
    size: Vec<i32>,
    number: Vec<i16>,
    attempts: Vec<i16>,
    lease_losses: Vec<i16>,
    undelivered: Vec<i16>,
    ended: Vec<&'a str>,
    code: Vec<Option<&'a str>>,
    error: Vec<Option<&'a str>>,
    delay_ms: Vec<Option<i64>>,
    dead_reason: Vec<Option<&'a str>>,
}

impl<'a> Columns<'a> {
    fn push(&mut self, placement: &'a Placement, lows: Lows<'_>) {
        let lease = &placement.lease;
        let (used, delay_ms, dead_reason) = match placement.next {
            Next::Ready(used) => (used, None, None),
            Next::Scheduled(used, delay) => (used, Some(as_millis(delay)), None),
            Next::Dead(used, reason) => (used, None, Some(reason.as_str())),
        };
        self.job.push(lease.job.get());
        self.token.push(lease.token.get());
        self.session.push(lease.session_no);
        self.started_at_us.push(lease.started_at_us);
        self.queue.push(lease.lane.queue);
        self.priority.push(lease.lane.priority);
        self.kind.push(lease.lane.kind);
        self.low.push(lows(lease.lane));
        self.size.push(lease.size);
        self.number.push(as_i16(lease.used.attempts.saturating_add(1)));
        self.attempts.push(as_i16(used.attempts));
        self.lease_losses.push(as_i16(used.lease_losses));
        self.undelivered.push(as_i16(used.undelivered));
        self.ended.push(placement.end.as_str());
        self.code.push(placement.code.as_deref());
        self.error.push(placement.error.as_deref());
        self.delay_ms.push(delay_ms);
        self.dead_reason.push(dead_reason);
    }
}

/// Counters as they are stored. They are bounded by [`queue_core::MAX_ATTEMPTS_BOUND`], far below the column's range.
fn as_i16(number: u32) -> i16 {
    i16::try_from(number).unwrap_or(i16::MAX)
}
