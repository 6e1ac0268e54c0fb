//! Looking at jobs and queues. Changes nothing.

use std::time::Duration;

use queue_core::{AttemptEnd, Counters, JobId, JobState, MAX_HISTORY, RetryPolicy};
use sqlx::PgConnection;

use crate::StoreError;
use crate::lease::{counters, stored_millis};

/// A job as it is stored. Times are microseconds since 1970, by the clock of the database.
#[derive(Debug, Clone)]
pub struct JobRecord {
    /// Identity.
    pub job: JobId,
    /// Name of its queue.
    pub queue: String,
    /// Name of its kind.
    pub kind: String,
    /// Where it is.
    pub state: JobState,
    /// 0 to 9.
    pub priority: i16,
    /// Input of the handler.
    pub payload: Vec<u8>,
    /// Handed to the handler.
    pub headers: Option<serde_json::Value>,
    /// Its idempotency key.
    pub key: Option<String>,
    /// What it has used of its budgets.
    pub used: Counters,
    /// The policy that holds for it.
    pub policy: RetryPolicy,
    /// Bound on one attempt.
    pub timeout: Duration,
    /// When it was enqueued.
    pub enqueued_at_us: i64,
    /// When it is due, if it is scheduled.
    pub due_at_us: Option<i64>,
    /// When it ended.
    pub finished_at_us: Option<i64>,
    /// What the handler returned.
    pub result: Option<Vec<u8>>,
    /// The committed effect.
    pub effect: Option<Vec<u8>>,
    /// Why it is dead.
    pub dead_reason: Option<String>,
    /// The job whose settlement enqueued it.
    pub parent: Option<i64>,
    /// Ended attempts, oldest first; the newest where there are very many.
    pub attempts: Vec<AttemptRecord>,
}

/// One ended attempt.
#[derive(Debug, Clone)]
pub struct AttemptRecord {
    /// Number as the handler saw it.
    pub number: i32,
    /// Fencing token of its lease.
    pub token: i64,
    /// How it ended.
    pub end: AttemptEnd,
    /// For programs.
    pub code: Option<String>,
    /// For people.
    pub error: Option<String>,
    /// Name of the worker.
    pub worker: Option<String>,
    /// When the lease was granted.
    pub started_at_us: i64,
    /// When the end was committed.
    pub ended_at_us: i64,
}

/// Returns a job with its history, or `None` if there is no such job.
pub async fn job(conn: &mut PgConnection, job: JobId) -> Result<Option<JobRecord>, StoreError> {
    let row = sqlx::query!(
        r#"-- job
        select q.name as queue, k.name as kind, s.state as "state!", j.priority, j.payload, j.headers,
            j.idempotency_key, s.attempts as "attempts!", s.lease_losses as "lease_losses!",
            p.max_attempts as "max_attempts!", p.max_lease_losses as "max_lease_losses!",
            p.backoff_base_ms as "backoff_base_ms!", p.backoff_factor as "backoff_factor!",
            p.backoff_cap_ms as "backoff_cap_ms!", p.jitter as "jitter!", p.timeout_ms as "timeout_ms!",
            (extract(epoch from fencepost.id_time(j.job_id)) * 1000000)::bigint as "enqueued_at_us!",
            (extract(epoch from s.due_at) * 1000000)::bigint as due_at_us,
            (extract(epoch from s.finished_at) * 1000000)::bigint as finished_at_us,
            s.result, e.effect as "effect?", s.reason, j.parent_id
        from fencepost.job j
        join fencepost.queue q using (queue_id)
        join fencepost.kind k using (kind_id)
        join fencepost.job_policy p using (job_id)
        cross join lateral (
            select state::text as state, attempts, lease_losses, null::timestamptz as due_at, finished_at, result,
                null::text as reason
            from fencepost.finished f where f.job_id = j.job_id
            union all
            select 'dead', attempts, lease_losses, null, died_at, null, reason
            from fencepost.dead d where d.job_id = j.job_id
            union all
            select 'leased', attempts, lease_losses, null, null, null, null
            from fencepost.lease l where l.job_id = j.job_id
            union all
            select 'scheduled', attempts, lease_losses, due_at, null, null, null
            from fencepost.scheduled s where s.job_id = j.job_id
            union all
            select 'ready', attempts, lease_losses, null, null, null, null
            from fencepost.ready r
            where r.queue_id = j.queue_id and r.priority = j.priority and r.kind_id = j.kind_id
                and r.position = j.job_id and r.job_id = j.job_id
            union all
            select 'ready', attempts, lease_losses, null, null, null, null
            from fencepost.ready r where r.job_id = j.job_id and r.position <> r.job_id
        ) s
        left join fencepost.effect e
            on e.keyed = (j.idempotency_key is not null) and e.key = coalesce(j.idempotency_key, j.job_id::text)
        where j.job_id = $1"#,
        job.get()
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(JobRecord {
        job,
        queue: row.queue,
        kind: row.kind,
        state: JobState::parse(&row.state).unwrap_or(JobState::Ready),
        priority: row.priority,
        payload: row.payload,
        headers: row.headers,
        key: row.idempotency_key,
        used: counters(row.attempts, row.lease_losses, 0),
        policy: RetryPolicy {
            max_attempts: row.max_attempts.try_into().unwrap_or_default(),
            max_lease_losses: row.max_lease_losses.try_into().unwrap_or_default(),
            backoff_base: stored_millis(row.backoff_base_ms),
            backoff_factor: row.backoff_factor,
            backoff_cap: stored_millis(row.backoff_cap_ms),
            jitter: row.jitter,
        },
        timeout: stored_millis(row.timeout_ms),
        enqueued_at_us: row.enqueued_at_us,
        due_at_us: row.due_at_us,
        finished_at_us: row.finished_at_us,
        result: row.result,
        effect: row.effect,
        dead_reason: row.reason,
        parent: row.parent_id,
        attempts: attempts(conn, job).await?,
    }))
}

async fn attempts(conn: &mut PgConnection, job: JobId) -> Result<Vec<AttemptRecord>, StoreError> {
    let rows = sqlx::query!(
        r#"-- attempts
        select h.token as "token!", h.number as "number!", h.ended as "ended!", h.error_code, h.error,
            w.name as "worker?",
            (extract(epoch from h.started_at) * 1000000)::bigint as "started_at_us!",
            (extract(epoch from h.ended_at) * 1000000)::bigint as "ended_at_us!"
        from (
            select *
            from fencepost.attempt_history
            where job_id = $1
            order by token desc
            limit $2
        ) h
        left join fencepost.worker w on w.session_no = h.session_no
        order by h.token"#,
        job.get(),
        MAX_HISTORY
    )
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| AttemptRecord {
            number: row.number,
            token: row.token,
            end: AttemptEnd::parse(&row.ended).unwrap_or(AttemptEnd::Failed),
            code: row.error_code,
            error: row.error,
            worker: row.worker,
            started_at_us: row.started_at_us,
            ended_at_us: row.ended_at_us,
        })
        .collect())
}

/// What one queue holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueCounts {
    /// Name.
    pub queue: String,
    /// Jobs for later.
    pub scheduled: i64,
    /// Jobs that wait for a slot.
    pub ready: i64,
    /// Jobs that workers hold.
    pub leased: i64,
    /// Jobs that ended well, ever.
    pub succeeded: i64,
    /// Jobs that are dead now.
    pub dead: i64,
    /// Jobs that were cancelled, ever.
    pub cancelled: i64,
    /// How long the oldest ready job has been ready.
    pub oldest_ready_age: Option<Duration>,
}

/// Counts by queue, in the order of names; all queues where none is named. Exact, of one instant, and no scan of jobs.
pub async fn queue_counts(conn: &mut PgConnection, queues: &[String]) -> Result<Vec<QueueCounts>, StoreError> {
    let rows = sqlx::query!(
        r#"-- queue_counts
        select queue as "queue!", scheduled::bigint as "scheduled!", ready::bigint as "ready!", leased::bigint as "leased!",
            succeeded::bigint as "succeeded!", dead::bigint as "dead!", cancelled::bigint as "cancelled!",
            (extract(epoch from oldest_ready_age) * 1000)::bigint as oldest_ms
        from fencepost.queue_status
        where cardinality($1::text[]) = 0 or queue = any($1)
        order by queue"#,
        queues
    )
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| QueueCounts {
            queue: row.queue,
            scheduled: row.scheduled,
            ready: row.ready,
            leased: row.leased,
            succeeded: row.succeeded,
            dead: row.dead,
            cancelled: row.cancelled,
            oldest_ready_age: row.oldest_ms.map(|ms| Duration::from_millis(ms.try_into().unwrap_or_default())),
        })
        .collect())
}

/// Leases whose session's time is over and that nobody has taken back yet. Reads the sessions, and the leases of such ones.
pub async fn expired_leases(conn: &mut PgConnection) -> Result<i64, StoreError> {
    let count = sqlx::query_scalar!(
        r#"-- expired_leases
        select count(*) as "count!"
        from fencepost.worker_session s
        cross join lateral (select from fencepost.lease where session_no = s.session_no offset 0) l
        where s.dead or s.expires_at < now()"#
    )
    .fetch_one(conn)
    .await?;
    Ok(count)
}
