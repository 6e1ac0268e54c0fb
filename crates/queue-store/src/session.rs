//! Worker sessions: opening, renewal, what they hold, closing.

use std::time::Duration;

use queue_core::{JobId, KindName, QueueName, SessionId, Token, WorkerName};
use sqlx::{Connection, PgConnection};

use crate::{Holder, SchedulerId, StoreError};

/// The right to act for a session on the scheduler's own account: owner and epoch, of which the latest Hello decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// The session.
    pub session_no: i64,
    /// Raised by each Hello.
    pub epoch: i32,
    /// The scheduler that the Hello reached.
    pub scheduler: SchedulerId,
}

/// What a worker says when it opens a session or takes it up again.
#[derive(Debug, Clone)]
pub struct Hello {
    /// Identity of the process incarnation.
    pub id: SessionId,
    /// For people.
    pub name: WorkerName,
    /// For people.
    pub build: String,
    /// The most important first.
    pub queues: Vec<QueueName>,
    /// Kinds it has handlers for.
    pub kinds: Vec<KindName>,
    /// Number of slots.
    pub capacity: u32,
}

/// What a Hello came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Session {
    /// Served by the caller from now on.
    Open(Owner),
    /// It was declared dead: final.
    Expired,
}

/// Opens a session, or takes it over with a higher epoch; its lease time starts anew.
///
/// A transaction of its own.
pub async fn hello(
    conn: &mut PgConnection,
    scheduler: SchedulerId,
    hello: &Hello,
    ttl: Duration,
) -> Result<Session, StoreError> {
    let mut tx = conn.begin().await?;
    let mut session = take_over(&mut tx, scheduler, hello, ttl).await?;
    if session.is_none() {
        session = open(&mut tx, scheduler, hello, ttl).await?;
    }
    if session.is_none() {
        // It is there after all: dead, or opened by another Hello that has committed in between.
        session = take_over(&mut tx, scheduler, hello, ttl).await?;
    }
    tx.commit().await?;
    Ok(session.map_or(Session::Expired, Session::Open))
}

/// Takes over a session that lives. `None` if there is none.
async fn take_over(
    conn: &mut PgConnection,
    scheduler: SchedulerId,
    hello: &Hello,
    ttl: Duration,
) -> Result<Option<Owner>, StoreError> {
    let taken = sqlx::query!(
        "-- hello_again
        update fencepost.worker_session s
        set owner = $2, epoch = s.epoch + 1, expires_at = now() + $3 * interval '1 second'
        from fencepost.worker w
        where w.session_id = $1 and s.session_no = w.session_no and not s.dead
        returning s.session_no, s.epoch",
        &hello.id.0[..],
        scheduler.0,
        ttl.as_secs_f64()
    )
    .fetch_optional(conn)
    .await?;
    Ok(taken.map(|row| Owner { session_no: row.session_no, epoch: row.epoch, scheduler }))
}

/// Opens a session that is not there. `None` if it is there after all.
async fn open(
    conn: &mut PgConnection,
    scheduler: SchedulerId,
    hello: &Hello,
    ttl: Duration,
) -> Result<Option<Owner>, StoreError> {
    let queues: Vec<&str> = hello.queues.iter().map(QueueName::as_str).collect();
    let kinds: Vec<&str> = hello.kinds.iter().map(KindName::as_str).collect();
    let opened = sqlx::query!(
        "-- hello
        with opened as (
            insert into fencepost.worker (session_no, session_id, name, build, queues, kinds, capacity)
            values (nextval('fencepost.session_seq'), $1, $2, $3, $4, $5, $6)
            on conflict do nothing
            returning session_no
        )
        insert into fencepost.worker_session (session_no, owner, epoch, expires_at)
        select session_no, $7, 1, now() + $8 * interval '1 second'
        from opened
        returning session_no, epoch",
        &hello.id.0[..],
        hello.name.as_str(),
        hello.build,
        &queues as &[&str],
        &kinds as &[&str],
        i32::try_from(hello.capacity).unwrap_or(i32::MAX),
        scheduler.0,
        ttl.as_secs_f64()
    )
    .fetch_optional(conn)
    .await?;
    Ok(opened.map(|row| Owner { session_no: row.session_no, epoch: row.epoch, scheduler }))
}

/// What became of one renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// Lives for a full lease time from now.
    Renewed,
    /// Dead, or served by another scheduler.
    Superseded,
}

/// Renews sessions in one statement, in order of the answers. `owners` must be sorted, so that two batches lock in one order.
pub async fn renew(conn: &mut PgConnection, owners: &[Owner], ttl: Duration) -> Result<Vec<Renewal>, StoreError> {
    debug_assert!(owners.is_sorted());
    let sessions: Vec<i64> = owners.iter().map(|owner| owner.session_no).collect();
    let epochs: Vec<i32> = owners.iter().map(|owner| owner.epoch).collect();
    let schedulers: Vec<i64> = owners.iter().map(|owner| owner.scheduler.0).collect();
    let renewed = sqlx::query_scalar!(
        r#"-- renew
        with input as materialized (
            select *
            from unnest($1::bigint[], $2::integer[], $3::bigint[]) with ordinality as i (session_no, epoch, owner, ord)
        )
        update fencepost.worker_session s
        set expires_at = now() + $4 * interval '1 second'
        from input i
        where s.session_no = i.session_no and s.epoch = i.epoch and s.owner = i.owner and not s.dead
        returning i.ord as "ord!""#,
        &sessions,
        &epochs,
        &schedulers,
        ttl.as_secs_f64()
    )
    .fetch_all(conn)
    .await?;
    let mut answers = vec![Renewal::Superseded; owners.len()];
    for at in renewed.into_iter().filter_map(|ord| usize::try_from(ord - 1).ok()) {
        answers[at] = Renewal::Renewed;
    }
    Ok(answers)
}

/// Of these sessions, those that are dead. One that is not there any more was, and has been tidied away.
pub async fn dead_sessions(conn: &mut PgConnection, sessions: &[i64]) -> Result<Vec<i64>, StoreError> {
    let dead = sqlx::query_scalar!(
        r#"-- dead_sessions
        select i.session_no as "session_no!"
        from unnest($1::bigint[]) i (session_no)
        where not exists (
            select from fencepost.worker_session s where s.session_no = i.session_no and not s.dead
        )"#,
        sessions
    )
    .fetch_all(conn)
    .await?;
    Ok(dead)
}

/// A lease that the database says a session holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLease {
    /// The session.
    pub session_no: i64,
    /// The job.
    pub job: JobId,
    /// Its token.
    pub token: Token,
    /// Time since the grant, by the clock of the database.
    pub age: Duration,
}

/// Reads all that sessions hold. Looks at leases only: whatever happens to the table of jobs, a worker learns what it holds.
///
/// Reads the dead entries of the sessions' earlier leases too, as long as a snapshot is held that may still see them: for now and
/// then. For leases that are known by name there is [`still_held`].
pub async fn held_leases(conn: &mut PgConnection, sessions: &[i64]) -> Result<Vec<HeldLease>, StoreError> {
    let rows = sqlx::query_as!(
        HeldRow,
        r#"-- held_leases
        select session_no, job_id, token, (extract(epoch from now() - granted_at) * 1000)::bigint as "age_ms!"
        from fencepost.lease
        where session_no = any($1)"#,
        sessions
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().filter_map(HeldRow::lease).collect())
}

/// Of these leases, those that are held. As [`held_leases`], looks at leases only.
pub async fn still_held(conn: &mut PgConnection, holders: &[Holder]) -> Result<Vec<HeldLease>, StoreError> {
    let jobs: Vec<i64> = holders.iter().map(|holder| holder.job.get()).collect();
    let tokens: Vec<i64> = holders.iter().map(|holder| holder.token.get()).collect();
    let sessions: Vec<i64> = holders.iter().map(|holder| holder.session_no).collect();
    let rows = sqlx::query_as!(
        HeldRow,
        r#"-- still_held
        select l.session_no, l.job_id, l.token, (extract(epoch from now() - l.granted_at) * 1000)::bigint as "age_ms!"
        from unnest($1::bigint[], $2::bigint[], $3::bigint[]) i (job_id, token, session_no)
        cross join lateral (
            select session_no, job_id, token, granted_at
            from fencepost.lease
            where job_id = i.job_id and token = i.token and session_no = i.session_no
            offset 0
        ) l"#,
        &jobs,
        &tokens,
        &sessions
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().filter_map(HeldRow::lease).collect())
}

struct HeldRow {
    session_no: i64,
    job_id: i64,
    token: i64,
    age_ms: i64,
}

impl HeldRow {
    fn lease(self) -> Option<HeldLease> {
        Some(HeldLease {
            session_no: self.session_no,
            job: JobId::try_from(self.job_id).ok()?,
            token: Token::try_from(self.token).ok()?,
            age: Duration::from_millis(self.age_ms.try_into().unwrap_or_default()),
        })
    }
}

/// A lease that is older than its job's timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverdueLease {
    /// The job.
    pub job: JobId,
    /// Its token.
    pub token: Token,
    /// By how much, by the clock of the database.
    pub by: Duration,
}

/// Of these leases, those that are older than their job's timeout by at least so much.
pub async fn overdue_leases(
    conn: &mut PgConnection,
    leases: &[HeldLease],
    least: Duration,
) -> Result<Vec<OverdueLease>, StoreError> {
    let jobs: Vec<i64> = leases.iter().map(|lease| lease.job.get()).collect();
    let tokens: Vec<i64> = leases.iter().map(|lease| lease.token.get()).collect();
    let rows = sqlx::query!(
        r#"-- overdue_leases
        select l.job_id, l.token, (extract(epoch from now() - l.granted_at) * 1000)::bigint - p.timeout_ms as "by_ms!"
        from unnest($1::bigint[], $2::bigint[]) i (job_id, token)
        cross join lateral (
            select job_id, token, granted_at from fencepost.lease where job_id = i.job_id and token = i.token offset 0
        ) l
        cross join lateral (select timeout_ms from fencepost.job_policy where job_id = i.job_id offset 0) p
        where l.granted_at < now() - p.timeout_ms * interval '1 millisecond' - $3 * interval '1 second'"#,
        &jobs,
        &tokens,
        least.as_secs_f64()
    )
    .fetch_all(conn)
    .await?;
    let overdue = rows.into_iter().filter_map(|row| {
        Some(OverdueLease {
            job: JobId::try_from(row.job_id).ok()?,
            token: Token::try_from(row.token).ok()?,
            by: Duration::from_millis(row.by_ms.try_into().unwrap_or_default()),
        })
    });
    Ok(overdue.collect())
}

/// Closes a session for good. Returns whether the caller still served it.
pub async fn close_session(conn: &mut PgConnection, owner: Owner) -> Result<bool, StoreError> {
    let closed = sqlx::query!(
        "-- close_session
        update fencepost.worker_session
        set dead = true, expires_at = now()
        where session_no = $1 and epoch = $2 and owner = $3 and not dead",
        owner.session_no,
        owner.epoch,
        owner.scheduler.0
    )
    .execute(conn)
    .await?;
    Ok(closed.rows_affected() == 1)
}
