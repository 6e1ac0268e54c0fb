//! Jobs that lie there before anything is measured, written into the tables by SQL: ten million of them by way of a scheduler
//! would take minutes.

use anyhow::Context as _;

use crate::{
    jobs::{NOOP, QUEUE},
    payload,
    psql::Psql,
    rig::{Rig, TEMPLATE},
};

/// The queue of what has nothing to do with the measured jobs.
const PAST: &str = "bench-past";

/// A kind that no worker has a handler for.
const UNKNOWN: &str = "bench.unknown";

/// Jobs of one millisecond: as if they had come in at 50,000 a second.
const PER_MILLISECOND: u32 = 50;

/// Where the jobs lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Ready, in the lane of the measured jobs.
    Ready,
    /// Ready, in the queue of the measured jobs and before them, of a kind that nobody handles.
    Unknown,
    /// Ended well.
    Finished,
    /// Due in a day and later.
    Scheduled,
    /// Dead.
    Dead,
}

/// Makes a database that holds so many jobs, to be copied for each run; returns its name.
pub(crate) async fn database(rig: &Rig, place: Place, jobs: u64) -> anyhow::Result<String> {
    let name = format!("filled_{}", rig.number());
    rig.admin.run(&format!("create database {name} template {TEMPLATE}")).await.context("make a database")?;
    eprintln!("  writing {jobs} jobs to {place:?}");
    fill(&rig.admin.database(&name), place, jobs).await?;
    Ok(name)
}

async fn fill(psql: &Psql, place: Place, jobs: u64) -> anyhow::Result<()> {
    let (queue, kind) = match place {
        Place::Ready => (QUEUE, NOOP),
        Place::Unknown => (QUEUE, UNKNOWN),
        Place::Finished | Place::Scheduled | Place::Dead => (PAST, NOOP),
    };
    let state = match place {
        Place::Ready | Place::Unknown => "ready",
        Place::Finished => "succeeded",
        Place::Scheduled => "scheduled",
        Place::Dead => "dead",
    };
    let (size, rows) = (payload::BYTES, rows(place));
    // Past identities: no scheduler gives them out again. A vacuum as the server would make in time.
    let sql = format!(
        "insert into fencepost.queue (name) values ('{queue}');
        insert into fencepost.kind (name) values ('{kind}');
        insert into fencepost.lane (queue_id, priority, kind_id) select queue_id, 4, kind_id from fencepost.queue, fencepost.kind;
        create temporary table past as
            select base + ((g / {PER_MILLISECOND})::bigint << 22) + g % {PER_MILLISECOND} as id, g, queue_id, kind_id, {size} as size,
                4::smallint as priority
            from (select fencepost.id_at(now() - interval '10 minutes') as base, queue_id, kind_id
                from fencepost.queue, fencepost.kind) b, generate_series(1, {jobs}) g;
        insert into fencepost.job (job_id, queue_id, kind_id, priority, payload)
            select id, queue_id, kind_id, priority, decode(repeat('00', 8) || repeat('78', {size} - 8), 'hex') from past;
        {rows};
        insert into fencepost.tally (queue_id, {state}) select queue_id, count(*) from past group by queue_id;
        drop table past;
        vacuum (analyze);
        checkpoint"
    );
    psql.run(&sql).await.with_context(|| format!("fill {place:?}"))
}

/// The statement that puts jobs in their place.
fn rows(place: Place) -> &'static str {
    match place {
        Place::Ready | Place::Unknown => {
            "insert into fencepost.ready (position, job_id, queue_id, kind_id, size, priority, attempts, lease_losses, undelivered)
                select id, id, queue_id, kind_id, size, priority, 0, 0, 0 from past"
        }
        Place::Finished => {
            "insert into fencepost.finished (job_id, token, session_no, started_at, finished_at, queue_id, kind_id, state, attempts,
                lease_losses)
                select id, nextval('fencepost.token_seq'), 0, fencepost.id_time(id), fencepost.id_time(id), queue_id, kind_id, 'succeeded',
                    0, 0 from past"
        }
        Place::Scheduled => {
            "insert into fencepost.scheduled (job_id, due_at, queue_id, kind_id, size, priority, attempts, lease_losses, undelivered)
                select id, now() + interval '1 day' + g * interval '1 millisecond', queue_id, kind_id, size, priority, 0, 0, 0 from past"
        }
        Place::Dead => {
            "insert into fencepost.dead (job_id, token, died_at, queue_id, kind_id, size, priority, attempts, lease_losses, undelivered,
                reason)
                select id, nextval('fencepost.token_seq'), fencepost.id_time(id), queue_id, kind_id, size, priority, 5, 0, 0,
                    'attempts_exhausted' from past"
        }
    }
}
