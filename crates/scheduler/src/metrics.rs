//! What a scheduler counts. Instruments are made on first use, in or below `main`.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram};
use queue_core::{AttemptEnd, DeadReason};
use queue_proto::v1::SettleVerdict;
use queue_store::{QueueCounts, Store, StoreError, expired_leases, queue_counts};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::enqueue_writer::Answer;
use crate::queue_service::is_new;
use crate::{batch, dispatcher};

/// How old the figures by queue may be, while somebody reads them.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);
/// Nobody has read the figures for so long: nobody listens, and nothing is counted until somebody reads again.
const UNREAD: Duration = Duration::from_mins(2);
/// Queues that have figures of their own; a label's values must be few.
const MAX_COUNTED_QUEUES: usize = 1_000;

struct Instruments {
    enqueued: Counter<u64>,
    duplicates: Counter<u64>,
    granted: Counter<u64>,
    empty_claims: Counter<u64>,
    ended: Counter<u64>,
    died: Counter<u64>,
    settled: Counter<u64>,
    stale: Counter<u64>,
    refused: Counter<u64>,
    commits: Histogram<f64>,
}

static INSTRUMENTS: LazyLock<Instruments> = LazyLock::new(|| {
    let meter = telemetry::meter();
    let counter = |name, description| meter.u64_counter(name).with_description(description).build();
    Instruments {
        enqueued: counter("fencepost.jobs.enqueued", "Jobs stored."),
        duplicates: counter("fencepost.jobs.enqueue_duplicates", "Enqueues answered with the first job of their key."),
        granted: counter("fencepost.jobs.granted", "Leases granted."),
        empty_claims: counter("fencepost.claims.empty", "Claims that found nothing."),
        ended: counter("fencepost.attempts.ended", "Ended attempts, by how they ended."),
        died: counter("fencepost.jobs.died", "Jobs that became dead, by reason."),
        settled: counter("fencepost.settlements", "Settlements answered, by verdict."),
        stale: counter("fencepost.writes.stale_refused", "Writes with a stale token, refused."),
        refused: counter("fencepost.callers.refused", "Calls without the token and connections without a handshake."),
        commits: telemetry::commit_histogram(
            "fencepost.commit.duration",
            "From the wait for a connection to the answer of a commit that succeeded, by writer.",
        ),
    }
});

/// What commits jobs in batches.
#[derive(Debug, Clone, Copy)]
pub enum Writer {
    /// Stores new jobs.
    Enqueue,
    /// Grants leases.
    Claim,
    /// Ends leases.
    Settle,
}

/// A batch was committed that was begun then.
pub fn committed(writer: Writer, began: Instant) {
    let name = match writer {
        Writer::Enqueue => "enqueue",
        Writer::Claim => "claim",
        Writer::Settle => "settle",
    };
    INSTRUMENTS.commits.record(began.elapsed().as_secs_f64(), &[KeyValue::new("writer", name)]);
}

/// Jobs were answered.
pub fn enqueued<'a>(answers: impl Iterator<Item = &'a Answer>) {
    let (mut new, mut duplicates) = (0, 0);
    for answer in answers {
        if is_new(answer) {
            new += 1;
        } else if answer.is_ok() {
            duplicates += 1;
        }
    }
    INSTRUMENTS.enqueued.add(new, &[]);
    INSTRUMENTS.duplicates.add(duplicates, &[]);
}

/// A claim brought so many jobs.
pub fn claimed(jobs: usize) {
    if jobs == 0 {
        INSTRUMENTS.empty_claims.add(1, &[]);
    }
    INSTRUMENTS.granted.add(jobs as u64, &[]);
}

/// Attempts have ended.
pub fn ended(end: AttemptEnd, count: usize) {
    if count > 0 {
        INSTRUMENTS.ended.add(count as u64, &[KeyValue::new("end", end.as_str())]);
    }
}

/// A job has died.
pub fn died(reason: DeadReason) {
    INSTRUMENTS.died.add(1, &[KeyValue::new("reason", reason.as_str())]);
}

/// A caller was refused, for its token or for its handshake.
pub fn refused(reason: &'static str) {
    INSTRUMENTS.refused.add(1, &[KeyValue::new("reason", reason)]);
}

/// So many settlements were answered.
pub fn settled(verdict: SettleVerdict, count: u64) {
    let name = match verdict {
        SettleVerdict::Applied => "applied",
        SettleVerdict::Duplicate => "duplicate",
        SettleVerdict::Fenced => "fenced",
        SettleVerdict::Rejected | SettleVerdict::Unspecified => "rejected",
    };
    INSTRUMENTS.settled.add(count, &[KeyValue::new("verdict", name)]);
    if verdict == SettleVerdict::Fenced {
        INSTRUMENTS.stale.add(count, &[]);
    }
}

/// The latest figures; none while the database is away, because none are better than old ones.
#[derive(Clone, Default)]
struct Latest(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    read: Notify,
}

#[derive(Default)]
struct State {
    figures: Option<(Vec<QueueCounts>, i64)>,
    read: Option<Instant>,
}

impl Latest {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T>(&self, figure: impl Fn(&(Vec<QueueCounts>, i64)) -> T) -> Option<T> {
        let mut state = self.state();
        state.read = Some(Instant::now());
        self.0.read.notify_one();
        state.figures.as_ref().map(figure)
    }

    /// Waits until the figures are old and somebody reads them.
    async fn wanted(&self) {
        sleep(COUNT_INTERVAL).await;
        loop {
            if self.state().read.is_some_and(|read| read.elapsed() < UNREAD) {
                return;
            }
            self.0.read.notified().await;
        }
    }
}

/// Reads the figures by queue now and then, for the gauges, until told to stop.
pub async fn run(store: Store, dispatcher: dispatcher::Handle, stop: CancellationToken) -> anyhow::Result<()> {
    let latest = Latest::default();
    // Counters exist from the start, so that zero is exported and not nothing.
    enqueued([].iter());
    INSTRUMENTS.stale.add(0, &[]);
    for reason in ["token", "tls"] {
        INSTRUMENTS.refused.add(0, &[KeyValue::new("reason", reason)]);
    }
    gauges(&latest, dispatcher);
    loop {
        let figures = store.within(count(&store)).await.map_err(|error| batch::complain("counting", &error)).ok();
        latest.state().figures = figures;
        tokio::select! {
            () = latest.wanted() => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

async fn count(store: &Store) -> Result<(Vec<QueueCounts>, i64), StoreError> {
    let mut conn = store.read().await?;
    let mut queues = queue_counts(&mut conn, &[]).await?;
    queues.truncate(MAX_COUNTED_QUEUES);
    Ok((queues, expired_leases(&mut conn).await?))
}

fn gauges(latest: &Latest, dispatcher: dispatcher::Handle) {
    let meter = telemetry::meter();
    let figures = latest.clone();
    meter
        .i64_observable_gauge("fencepost.queue.jobs")
        .with_description("Jobs of a queue, by state.")
        .with_callback(move |gauge| {
            for queue in figures.read(|(queues, _)| queues.clone()).unwrap_or_default() {
                let states = [
                    ("scheduled", queue.scheduled),
                    ("ready", queue.ready),
                    ("leased", queue.leased),
                    ("dead", queue.dead),
                ];
                for (state, count) in states {
                    gauge.observe(count, &[KeyValue::new("queue", queue.queue.clone()), KeyValue::new("state", state)]);
                }
            }
        })
        .build();
    let figures = latest.clone();
    meter
        .f64_observable_gauge("fencepost.queue.oldest_ready_age")
        .with_unit("s")
        .with_description("How long the oldest ready job of a queue has been ready; 0 if none is.")
        .with_callback(move |gauge| {
            for queue in figures.read(|(queues, _)| queues.clone()).unwrap_or_default() {
                let age = queue.oldest_ready_age.unwrap_or_default();
                gauge.observe(age.as_secs_f64(), &[KeyValue::new("queue", queue.queue.clone())]);
            }
        })
        .build();
    let figures = latest.clone();
    meter
        .i64_observable_gauge("fencepost.leases.expired")
        .with_description("Leases whose session's time is over and that were not taken back yet.")
        .with_callback(move |gauge| {
            if let Some(expired) = figures.read(|(_, expired)| *expired) {
                gauge.observe(expired, &[]);
            }
        })
        .build();
    let seats = dispatcher.clone();
    meter
        .u64_observable_gauge("fencepost.sessions")
        .with_description("Worker sessions connected to this scheduler.")
        .with_callback(move |gauge| gauge.observe(seats.sessions() as u64, &[]))
        .build();
    meter
        .u64_observable_gauge("fencepost.slots.free")
        .with_description("Free slots of the sessions connected to this scheduler.")
        .with_callback(move |gauge| gauge.observe(dispatcher.free_slots(), &[]))
        .build();
}
