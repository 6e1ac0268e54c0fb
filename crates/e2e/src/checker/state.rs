//! What the database holds in the end, read by statements of the checker's own.

use std::collections::BTreeMap;

use anyhow::Context as _;
use sqlx::{PgConnection, Row as _, postgres::PgRow};

use crate::clock;

/// The end of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    /// Every job.
    pub(crate) jobs: BTreeMap<i64, Job>,
    /// Attempts that ended other than well, by start.
    pub(crate) attempts: Vec<EndedAttempt>,
    /// Committed effects.
    pub(crate) effects: Vec<Effect>,
    /// What the database counts by queue and state, where it differs from the rows: texts for people.
    pub(crate) miscounted: Vec<String>,
    /// Nanoseconds of the machine's clock at microsecond 0 of the database's.
    pub(crate) epoch: i128,
}

/// One job.
#[derive(Debug, Clone, Default)]
pub(crate) struct Job {
    /// Its idempotency key.
    pub(crate) key: Option<String>,
    /// What holds for it.
    pub(crate) policy: Policy,
    /// Where it is: exactly one place, or something is wrong.
    pub(crate) places: Vec<Place>,
}

/// A retry policy.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Policy {
    /// Attempts in all.
    pub(crate) max_attempts: i64,
    /// Attempts that may be lost.
    pub(crate) max_lease_losses: i64,
    /// The first wait.
    pub(crate) backoff_base_ms: i64,
    /// The longest.
    pub(crate) backoff_cap_ms: i64,
    /// By how much each is longer than the one before.
    pub(crate) backoff_factor: f64,
    /// Part of a wait that chance may take away.
    pub(crate) jitter: f64,
}

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Waits for its time.
    Scheduled,
    /// Waits for a worker.
    Ready,
    /// A worker has it.
    Leased,
    /// Done.
    Succeeded,
    /// Called off.
    Cancelled,
    /// Given up.
    Dead,
}

/// A row that says where a job is.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Where.
    pub(crate) kind: Kind,
    /// Token of its last lease, where that is known; 0 if it never had one.
    pub(crate) token: Option<i64>,
    /// When that lease was granted, in microseconds.
    pub(crate) started: Option<i64>,
    /// When the job ended, in microseconds.
    pub(crate) ended: Option<i64>,
    /// Attempts used.
    pub(crate) attempts: i64,
    /// Of those, lost ones.
    pub(crate) lease_losses: i64,
    /// What its handler returned.
    pub(crate) result: Option<String>,
}

/// An attempt that ended other than well.
#[derive(Debug, Clone)]
pub(crate) struct EndedAttempt {
    /// The job.
    pub(crate) job: i64,
    /// Its token.
    pub(crate) token: i64,
    /// Its number.
    pub(crate) number: i64,
    /// When the lease was granted, in microseconds.
    pub(crate) started: i64,
    /// When it ended, in microseconds.
    pub(crate) ended: i64,
    /// How.
    pub(crate) how: String,
}

/// A committed effect.
#[derive(Debug, Clone)]
pub(crate) struct Effect {
    /// The idempotency key.
    pub(crate) key: String,
    /// The job.
    pub(crate) job: i64,
    /// Token of the lease that it was committed under.
    pub(crate) token: i64,
    /// What it says.
    pub(crate) text: String,
}

impl Kind {
    fn named(name: &str) -> anyhow::Result<Self> {
        Ok(match name {
            "scheduled" => Self::Scheduled,
            "ready" => Self::Ready,
            "leased" => Self::Leased,
            "succeeded" => Self::Succeeded,
            "cancelled" => Self::Cancelled,
            "dead" => Self::Dead,
            other => anyhow::bail!("a job is {other}"),
        })
    }

    /// Whether a job stays there.
    pub(crate) fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Cancelled | Self::Dead)
    }
}

impl State {
    /// Reads all of it at one moment. For as many jobs as a run has, which is tens of thousands.
    pub(crate) async fn read(conn: &mut PgConnection) -> anyhow::Result<Self> {
        sqlx::query("begin isolation level repeatable read read only").execute(&mut *conn).await?;
        let mut state = Self { epoch: epoch(conn).await?, ..Self::default() };
        for row in sqlx::query(JOBS).fetch_all(&mut *conn).await.context("read the jobs")? {
            state.jobs.insert(row.try_get("job_id")?, job(&row)?);
        }
        for row in sqlx::query(PLACES).fetch_all(&mut *conn).await.context("read where the jobs are")? {
            state.jobs.entry(row.try_get("job_id")?).or_default().places.push(place(&row)?);
        }
        for row in sqlx::query(ATTEMPTS).fetch_all(&mut *conn).await.context("read the attempts")? {
            state.attempts.push(attempt(&row)?);
        }
        for row in sqlx::query(EFFECTS).fetch_all(&mut *conn).await.context("read the effects")? {
            state.effects.push(effect(&row)?);
        }
        for row in sqlx::query(MISCOUNTED).fetch_all(&mut *conn).await.context("compare the counts")? {
            state.miscounted.push(row.try_get(0)?);
        }
        sqlx::query("commit").execute(conn).await?;
        Ok(state)
    }

    /// Jobs that ended well.
    pub(crate) fn succeeded(&self) -> usize {
        self.jobs.values().filter(|job| job.places.iter().any(|place| place.kind == Kind::Succeeded)).count()
    }

    /// A time of the database, in microseconds, on the machine's clock.
    pub(crate) fn nanos(&self, micros: i64) -> i128 {
        self.epoch + i128::from(micros) * 1_000
    }
}

/// The clocks are read one after the other; what lies between is taken off, so that no time of the database seems earlier than
/// it was.
async fn epoch(conn: &mut PgConnection) -> anyhow::Result<i128> {
    let row = sqlx::query("select (extract(epoch from clock_timestamp()) * 1000000)::bigint").fetch_one(conn).await?;
    let after = clock::nanos();
    let micros: i64 = row.try_get(0)?;
    Ok(i128::from(after) - i128::from(micros) * 1_000)
}

const JOBS: &str = "
    select j.job_id, j.idempotency_key, p.max_attempts::bigint, p.max_lease_losses::bigint, p.backoff_base_ms::bigint,
        p.backoff_cap_ms::bigint, p.backoff_factor::float8, p.jitter::float8
    from fencepost.job j
    join fencepost.job_policy p using (job_id)";

const PLACES: &str = "
    with place as (
        select job_id, 'scheduled' as kind, null::bigint as token, null::timestamptz as started, null::timestamptz as ended,
            attempts, lease_losses, null::bytea as result
        from fencepost.scheduled
        union all
        select job_id, 'ready', null, null, null, attempts, lease_losses, null from fencepost.ready
        union all
        select job_id, 'leased', token, granted_at, null, attempts, lease_losses, null from fencepost.lease
        union all
        select job_id, state::text, token, started_at, finished_at, attempts, lease_losses, result from fencepost.finished
        union all
        select job_id, 'dead', token, null, died_at, attempts, lease_losses, null from fencepost.dead
    )
    select job_id, kind, token, (extract(epoch from started) * 1000000)::bigint as started,
        (extract(epoch from ended) * 1000000)::bigint as ended, attempts::bigint, lease_losses::bigint,
        convert_from(result, 'UTF8') as result
    from place";

const ATTEMPTS: &str = "
    select job_id, token, number::bigint, (extract(epoch from started_at) * 1000000)::bigint as started,
        (extract(epoch from ended_at) * 1000000)::bigint as ended, ended::text as how
    from fencepost.attempt_log
    order by started_at, token";

const EFFECTS: &str = "
    select key, job_id, token, convert_from(effect, 'UTF8') as text
    from fencepost.effect";

const MISCOUNTED: &str = "
    with place as (
        select queue_id, 'scheduled' as kind from fencepost.scheduled
        union all select queue_id, 'ready' from fencepost.ready
        union all select queue_id, 'leased' from fencepost.lease
        union all select queue_id, state::text from fencepost.finished
        union all select queue_id, 'dead' from fencepost.dead
    ), counted as (
        select q.name, c.kind, count(p.kind) as rows
        from fencepost.queue q
        cross join unnest(array['scheduled', 'ready', 'leased', 'succeeded', 'dead']) c (kind)
        left join place p on p.queue_id = q.queue_id and p.kind = c.kind
        group by q.name, c.kind
    ), told as (
        select s.queue as name, u.kind, u.told
        from fencepost.queue_status s
        cross join lateral (values ('scheduled', s.scheduled), ('ready', s.ready), ('leased', s.leased),
            ('succeeded', s.succeeded), ('dead', s.dead)) u (kind, told)
    )
    select format('queue %s: %s jobs are %s, the count says %s', name, rows, kind, told)
    from counted
    join told using (name, kind)
    where rows <> told";

fn job(row: &PgRow) -> anyhow::Result<Job> {
    Ok(Job {
        key: row.try_get("idempotency_key")?,
        policy: Policy {
            max_attempts: row.try_get("max_attempts")?,
            max_lease_losses: row.try_get("max_lease_losses")?,
            backoff_base_ms: row.try_get("backoff_base_ms")?,
            backoff_cap_ms: row.try_get("backoff_cap_ms")?,
            backoff_factor: row.try_get("backoff_factor")?,
            jitter: row.try_get("jitter")?,
        },
        places: Vec::new(),
    })
}

fn place(row: &PgRow) -> anyhow::Result<Place> {
    Ok(Place {
        kind: Kind::named(row.try_get("kind")?)?,
        token: row.try_get("token")?,
        started: row.try_get("started")?,
        ended: row.try_get("ended")?,
        attempts: row.try_get("attempts")?,
        lease_losses: row.try_get("lease_losses")?,
        result: row.try_get("result")?,
    })
}

fn attempt(row: &PgRow) -> anyhow::Result<EndedAttempt> {
    Ok(EndedAttempt {
        job: row.try_get("job_id")?,
        token: row.try_get("token")?,
        number: row.try_get("number")?,
        started: row.try_get("started")?,
        ended: row.try_get("ended")?,
        how: row.try_get("how")?,
    })
}

fn effect(row: &PgRow) -> anyhow::Result<Effect> {
    Ok(Effect {
        key: row.try_get("key")?,
        job: row.try_get("job_id")?,
        token: row.try_get("token")?,
        text: row.try_get("text")?,
    })
}
