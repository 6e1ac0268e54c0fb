//! Enqueue: a batch of jobs in one statement. Jobs that a free slot waits for become leases at once, without a claim.

use std::collections::BTreeSet;
use std::time::Duration;

use queue_core::{Counters, JobId, NewJob, Start, Token};
use serde_json::Value;
use sha2::{Digest, Sha256};
use sqlx::PgConnection;

use crate::lease::stored_millis;
use crate::{Claimed, Lane, Owner, StoreError};

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
    Ok(enqueue_for(conn, rows, &[]).await?.0)
}

/// Stores jobs and, if each of them is due and has a slot, leases it to the session of its slot in the same statement;
/// answers one by one, in order, and returns the new leases. A session that its scheduler does not serve any more, or that
/// is dead, gets nothing: its jobs are ready.
///
/// As [`enqueue`]: a batch is leased as a whole or not at all, so that it stays one statement, which is done or not. A lock
/// that somebody holds on the leases keeps no job from being stored.
pub async fn enqueue_for(
    conn: &mut PgConnection,
    rows: &[EnqueueRow],
    slots: &[Owner],
) -> Result<(Vec<Enqueued>, Vec<Claimed>), StoreError> {
    let mut lease = slots.len() == rows.len() && rows.iter().all(|row| row.job.start == Start::Now);
    let (mut answers, mut leased) = (vec![None; rows.len()], Vec::new());
    for _ in 0..KEY_ROUNDS {
        let open: Vec<usize> = (0..rows.len()).filter(|&at| answers[at].is_none()).collect();
        if open.is_empty() {
            break;
        }
        let columns = Columns::of(open.iter().map(|&at| (&rows[at], slots.get(at).copied())));
        if lease {
            match insert_leased(conn, &columns).await {
                Ok(stored) => {
                    for (ord, job, lease) in stored {
                        answers[open[ord]] = Some(Enqueued::New(job));
                        leased.extend(lease.map(|lease| claimed(&rows[open[ord]], job, lease)));
                    }
                }
                Err(error) if error.is_locked() => lease = false,
                Err(error) => return Err(error),
            }
        }
        if !lease {
            for (ord, job) in insert(conn, &columns).await? {
                answers[open[ord]] = Some(Enqueued::New(job));
            }
        }
        look_up_keys(conn, &columns, &open, &mut answers).await?;
    }
    let answers = answers.into_iter().collect::<Option<_>>();
    Ok((answers.ok_or_else(|| StoreError::Unavailable(sqlx::Error::RowNotFound))?, leased))
}

/// What the database adds to a job that was leased at once.
#[derive(Clone, Copy)]
struct Lease {
    token: Token,
    session_no: i64,
    /// The queue's.
    timeout: Duration,
    /// The queue's.
    max_attempts: u32,
}

fn claimed(EnqueueRow { job, lane, .. }: &EnqueueRow, id: JobId, lease: Lease) -> Claimed {
    Claimed {
        job: id,
        token: lease.token,
        session_no: lease.session_no,
        lane: *lane,
        position: id.get(),
        used: Counters::default(),
        payload: job.payload.clone(),
        headers: headers(job),
        key: job.key.as_ref().map(|key| key.as_str().to_owned()),
        traceparent: job.traceparent.clone(),
        timeout: job.timeout.unwrap_or(lease.timeout),
        max_attempts: job.retry.max_attempts.unwrap_or(lease.max_attempts),
    }
}

fn headers(job: &NewJob) -> Option<Value> {
    let entries = job.headers.entries().iter().map(|(name, value)| (name.clone(), Value::from(value.clone())));
    (!job.headers.is_empty()).then(|| entries.collect())
}

/// The batch by columns, as arrays of one fixed statement. What few jobs have is one object: each array costs every job.
#[derive(Default)]
struct Columns<'a> {
    queue: Vec<i32>,
    priority: Vec<i16>,
    kind: Vec<i32>,
    payload: Vec<&'a [u8]>,
    key: Vec<Option<&'a str>>,
    fingerprint: Vec<Option<Vec<u8>>>,
    options: Vec<Option<Value>>,
    session: Vec<Option<i64>>,
    owners: BTreeSet<Owner>,
}

impl<'a> Columns<'a> {
    fn of(rows: impl Iterator<Item = (&'a EnqueueRow, Option<Owner>)>) -> Self {
        let mut columns = Self::default();
        for (row, slot) in rows {
            columns.push(row);
            columns.session.push(slot.map(|owner| owner.session_no));
            columns.owners.extend(slot);
        }
        columns
    }

    fn push(&mut self, row: &'a EnqueueRow) {
        let EnqueueRow { job, lane, .. } = row;
        self.queue.push(lane.queue);
        self.priority.push(lane.priority);
        self.kind.push(lane.kind);
        self.payload.push(&job.payload);
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
    set("headers", headers(job));
    let header_bytes = job.headers.entries().iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
    set("header_bytes", (header_bytes > 0).then(|| header_bytes.into()));
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
                    to_timestamp((options->>'run_at_us')::bigint / 1000000.0)) as due_at,
                octet_length(payload) + coalesce((options->>'header_bytes')::integer, 0) as size
            from unnest($1::integer[], $2::smallint[], $3::integer[], $4::bytea[], $5::text[], $6::bytea[], $7::jsonb[])
                with ordinality as i (queue_id, priority, kind_id, payload, key, fingerprint, options, ord)
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

/// As [`insert`], of jobs that are due and have a slot each. Returns their leases as well.
async fn insert_leased(
    conn: &mut PgConnection,
    columns: &Columns<'_>,
) -> Result<Vec<(usize, JobId, Option<Lease>)>, StoreError> {
    let sessions: Vec<i64> = columns.owners.iter().map(|owner| owner.session_no).collect();
    let epochs: Vec<i32> = columns.owners.iter().map(|owner| owner.epoch).collect();
    let schedulers: Vec<i64> = columns.owners.iter().map(|owner| owner.scheduler.0).collect();
    let stored = sqlx::query!(
        r#"-- enqueue_leased
        with input as materialized (
            select i.*, (select base from fencepost.id_base) | (nextval('fencepost.job_seq') & 65535) as job_id,
                octet_length(payload) + coalesce((options->>'header_bytes')::integer, 0) as size
            from unnest($1::integer[], $2::smallint[], $3::integer[], $4::bytea[], $5::text[], $6::bytea[], $7::jsonb[],
                $8::bigint[])
                with ordinality as i (queue_id, priority, kind_id, payload, key, fingerprint, options, wanted, ord)
        ), slot as materialized (
            select s.session_no
            from unnest($9::bigint[], $10::integer[], $11::bigint[]) i (session_no, epoch, owner)
            join fencepost.worker_session s
                on s.session_no = i.session_no and s.epoch = i.epoch and s.owner = i.owner and not s.dead
        ), keyed as (
            insert into fencepost.idempotency_key (key, job_id, fingerprint)
            select key, job_id, fingerprint
            from input
            where key is not null
            order by key, ord
            on conflict do nothing
            returning job_id
        ), fresh as materialized (
            select *, case when wanted in (select session_no from slot) then wanted end as session_no
            from input
            where key is null or job_id in (select job_id from keyed)
        ), drawn as materialized (
            select nextval('fencepost.token_seq') << 10 as token
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
        ), leased as (
            insert into fencepost.lease (job_id, token, session_no, granted_at, queue_id, kind_id, size, priority,
                attempts, lease_losses, undelivered)
            select job_id, (select token from drawn) | ord, session_no, now(), queue_id, kind_id, size, priority, 0, 0, 0
            from fresh
            where session_no is not null
        ), readied as (
            insert into fencepost.ready (position, job_id, queue_id, kind_id, size, priority, attempts, lease_losses,
                undelivered)
            select job_id, job_id, queue_id, kind_id, size, priority, 0, 0, 0
            from fresh
            where session_no is null
        ), tallied as (
            insert into fencepost.tally (queue_id, leased, ready)
            select queue_id, count(session_no), count(*) - count(session_no)
            from fresh
            group by queue_id
        )
        select ord as "ord!", job_id as "job_id!", session_no as "session_no?",
            case when session_no is not null then (select token from drawn) | ord end as "token?",
            case when session_no is not null
                then (select timeout_ms from fencepost.queue q where q.queue_id = f.queue_id)
            end as "timeout_ms?",
            case when session_no is not null
                then (select max_attempts from fencepost.queue q where q.queue_id = f.queue_id)
            end as "max_attempts?"
        from fresh f"#,
        &columns.queue,
        &columns.priority,
        &columns.kind,
        &columns.payload as &[&[u8]],
        &columns.key as &[Option<&str>],
        &columns.fingerprint as &[Option<Vec<u8>>],
        &columns.options as &[Option<Value>],
        &columns.session as &[Option<i64>],
        &sessions,
        &epochs,
        &schedulers,
    )
    .fetch_all(conn)
    .await?;
    let stored = stored.into_iter().filter_map(|row| {
        let lease = || {
            Some(Lease {
                token: Token::try_from(row.token?).ok()?,
                session_no: row.session_no?,
                timeout: stored_millis(row.timeout_ms?),
                max_attempts: row.max_attempts?.try_into().unwrap_or_default(),
            })
        };
        Some((usize::try_from(row.ord - 1).ok()?, JobId::try_from(row.job_id).ok()?, lease()))
    });
    Ok(stored.collect())
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

pub(crate) fn as_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

pub(crate) fn as_i32(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
