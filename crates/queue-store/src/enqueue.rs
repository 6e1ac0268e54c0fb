//! Enqueue: a batch of jobs in one statement.

use queue_core::{JobId, NewJob, Start};
use serde_json::Value;
use sha2::{Digest, Sha256};
use sqlx::PgConnection;

use crate::{Lane, StoreError};

/// A job to be stored, with its registered lane.
#[derive(Debug, Clone)]
pub struct EnqueueRow {
    /// What to store.
    pub job: NewJob,
    /// Where it goes.
    pub lane: Lane,
    /// The job whose settlement enqueues it.
    pub parent: Option<JobId>,
}

/// What became of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueued {
    /// Stored.
    New(JobId),
    /// The key belongs to this job, with the same content; nothing was stored.
    Existing(JobId),
    /// The key belongs to this job, with other content; nothing was stored.
    Conflict(JobId),
}

/// Keys may be removed by retention between the insert that met them and the look-up; then the insert is tried again.
const KEY_ROUNDS: usize = 3;

/// Stores jobs; answers one by one, in order.
///
/// At most [`queue_core::MAX_BATCH`] rows. One statement, and a look-up where idempotency keys were there already. Outside
/// of a transaction what it returns is committed.
pub async fn enqueue(conn: &mut PgConnection, rows: &[EnqueueRow]) -> Result<Vec<Enqueued>, StoreError> {
    let mut answers = vec![None; rows.len()];
    for _ in 0..KEY_ROUNDS {
        let open: Vec<usize> = (0..rows.len()).filter(|&at| answers[at].is_none()).collect();
        if open.is_empty() {
            break;
        }
        let columns = Columns::of(open.iter().map(|&at| &rows[at]));
        for (ord, job) in insert(conn, &columns).await? {
            answers[open[ord]] = Some(Enqueued::New(job));
        }
        look_up_keys(conn, &columns, &open, &mut answers).await?;
    }
    answers.into_iter().collect::<Option<_>>().ok_or_else(|| StoreError::Unavailable(sqlx::Error::RowNotFound))
}

/// The batch by columns, as arrays of one fixed statement. What few jobs have is one object: each array costs every job.
#[derive(Default)]
struct Columns<'a> {
    queue: Vec<i32>,
    priority: Vec<i16>,
    kind: Vec<i32>,
    payload: Vec<&'a [u8]>,
    size: Vec<i32>,
    key: Vec<Option<&'a str>>,
    fingerprint: Vec<Option<Vec<u8>>>,
    options: Vec<Option<Value>>,
}

impl<'a> Columns<'a> {
    fn of(rows: impl Iterator<Item = &'a EnqueueRow>) -> Self {
        let mut columns = Self::default();
        for row in rows {
            columns.push(row);
        }
        columns
    }

    fn push(&mut self, row: &'a EnqueueRow) {
        let EnqueueRow { job, lane, .. } = row;
        self.queue.push(lane.queue);
        self.priority.push(lane.priority);
        self.kind.push(lane.kind);
        self.payload.push(&job.payload);
        let header_bytes: usize = job.headers.entries().iter().map(|(name, value)| name.len() + value.len()).sum();
        self.size.push(i32::try_from(job.payload.len() + header_bytes).unwrap_or(i32::MAX));
        self.key.push(job.key.as_ref().map(queue_core::IdempotencyKey::as_str));
        self.fingerprint.push(job.key.as_ref().map(|_| fingerprint(job)));
        self.options.push(options(row));
    }
}

/// What is set of all that most jobs leave open.
fn options(EnqueueRow { job, parent, .. }: &EnqueueRow) -> Option<Value> {
    let mut options = serde_json::Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            options.insert(name.to_owned(), value);
        }
    };
    let headers = job.headers.entries().iter().map(|(name, value)| (name.clone(), Value::from(value.clone())));
    set("headers", (!job.headers.is_empty()).then(|| headers.collect()));
    set("traceparent", job.traceparent.as_deref().map(Value::from));
    set("parent_id", parent.map(|parent| parent.get().into()));
    match job.start {
        Start::Now => {}
        Start::After(delay) => set("delay_ms", Some(as_millis(delay).into())),
        Start::At(micros) => set("run_at_us", Some(micros.into())),
    }
    set("timeout_ms", job.timeout.map(|timeout| as_millis(timeout).into()));
    set("max_attempts", job.retry.max_attempts.map(|number| as_i32(number).into()));
    set("max_lease_losses", job.retry.max_lease_losses.map(|number| as_i32(number).into()));
    set("backoff_base_ms", job.retry.backoff_base.map(|time| as_millis(time).into()));
    set("backoff_cap_ms", job.retry.backoff_cap.map(|time| as_millis(time).into()));
    set("backoff_factor", job.retry.backoff_factor.map(Value::from));
    set("jitter", job.retry.jitter.map(Value::from));
    (!options.is_empty()).then_some(Value::Object(options))
}

/// Returns the positions in the batch that were stored, with their new identities.
async fn insert(conn: &mut PgConnection, columns: &Columns<'_>) -> Result<Vec<(usize, JobId)>, StoreError> {
    let stored = sqlx::query!(
        r#"-- enqueue
        with input as materialized (
            select i.*, (select base from fencepost.id_base) | (nextval('fencepost.job_seq') & 65535) as job_id,
                coalesce(now() + (options->>'delay_ms')::bigint * interval '1 millisecond',
                    to_timestamp((options->>'run_at_us')::bigint / 1000000.0)) as due_at
            from unnest($1::integer[], $2::smallint[], $3::integer[], $4::bytea[], $5::integer[], $6::text[],
                $7::bytea[], $8::jsonb[])
                with ordinality as i (queue_id, priority, kind_id, payload, size, key, fingerprint, options, ord)
        ), keyed as (
            insert into fencepost.idempotency_key (key, job_id, fingerprint)
            select key, job_id, fingerprint
            from input
            where key is not null
            order by key, ord
            on conflict do nothing
            returning job_id
        ), fresh as materialized (
            select *
            from input
            where key is null or job_id in (select job_id from keyed)
        ), stored as (
            insert into fencepost.job (job_id, queue_id, kind_id, priority, payload, idempotency_key, headers,
                traceparent, parent_id, timeout_ms, max_attempts, max_lease_losses, backoff_base_ms, backoff_cap_ms,
                backoff_factor, jitter)
            select job_id, queue_id, kind_id, priority, payload, key, options->'headers', options->>'traceparent',
                (options->>'parent_id')::bigint, (options->>'timeout_ms')::bigint, (options->>'max_attempts')::integer,
                (options->>'max_lease_losses')::integer, (options->>'backoff_base_ms')::bigint,
                (options->>'backoff_cap_ms')::bigint, (options->>'backoff_factor')::float8,
                (options->>'jitter')::float8
            from fresh
        ), readied as (
            insert into fencepost.ready (position, job_id, queue_id, kind_id, size, priority, attempts, lease_losses,
                undelivered)
            select job_id, job_id, queue_id, kind_id, size, priority, 0, 0, 0
            from fresh
            where due_at is null or due_at <= now()
        ), deferred as (
            insert into fencepost.scheduled (job_id, due_at, queue_id, kind_id, size, priority, attempts, lease_losses,
                undelivered)
            select job_id, due_at, queue_id, kind_id, size, priority, 0, 0, 0
            from fresh
            where due_at > now()
        ), tallied as (
            insert into fencepost.tally (queue_id, ready, scheduled)
            select queue_id, count(*) filter (where due_at is null or due_at <= now()),
                count(*) filter (where due_at > now())
            from fresh
            group by queue_id
        )
        select ord as "ord!", job_id as "job_id!"
        from fresh"#,
        &columns.queue,
        &columns.priority,
        &columns.kind,
        &columns.payload as &[&[u8]],
        &columns.size,
        &columns.key as &[Option<&str>],
        &columns.fingerprint as &[Option<Vec<u8>>],
        &columns.options as &[Option<Value>],
    )
    .fetch_all(conn)
    .await?;
    Ok(stored
        .into_iter()
        .filter_map(|row| Some((usize::try_from(row.ord - 1).ok()?, JobId::try_from(row.job_id).ok()?)))
        .collect())
}

/// Answers the rows whose keys were there: the transaction that had them has committed, or the insert would have won.
async fn look_up_keys(
    conn: &mut PgConnection,
    columns: &Columns<'_>,
    open: &[usize],
    answers: &mut [Option<Enqueued>],
) -> Result<(), StoreError> {
    let missing: Vec<usize> = (0..open.len()).filter(|&ord| answers[open[ord]].is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let keys: Vec<&str> = missing.iter().filter_map(|&ord| columns.key[ord]).collect();
    let found = sqlx::query!(
        "-- look_up_keys
        select key, job_id, fingerprint
        from fencepost.idempotency_key
        where key = any($1)",
        &keys as &[&str]
    )
    .fetch_all(conn)
    .await?;
    let found: std::collections::HashMap<_, _> = found.iter().map(|row| (row.key.as_str(), row)).collect();
    for ord in missing {
        let Some(row) = columns.key[ord].and_then(|key| found.get(key)) else { continue };
        let Ok(job) = JobId::try_from(row.job_id) else { continue };
        let same = columns.fingerprint[ord].as_ref() == Some(&row.fingerprint);
        answers[open[ord]] = Some(if same { Enqueued::Existing(job) } else { Enqueued::Conflict(job) });
    }
    Ok(())
}

/// First 16 bytes of the SHA-256 of queue, kind and payload. A NUL, which no name holds, keeps the parts apart.
fn fingerprint(job: &NewJob) -> Vec<u8> {
    let mut hash = Sha256::new();
    hash.update(job.queue.as_str());
    hash.update([0]);
    hash.update(job.kind.as_str());
    hash.update([0]);
    hash.update(&job.payload);
    hash.finalize()[..16].to_vec()
}

pub(crate) fn as_millis(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

pub(crate) fn as_i32(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
