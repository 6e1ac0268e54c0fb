//! The writer that settles leases.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use queue_core::{AttemptEnd, MAX_BATCH, Next, Outcome};
use queue_proto::v1;
use queue_store::{
    Death, Ending, EnqueueRow, Enqueued, Hint, Holder, Lane, Line, Past, Registry, SettledEffect, Store, StoreError,
    Succeeding, Transaction, enqueue, look_up, settle_endings, settle_succeeded,
};
use telemetry::LogLimit;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::enqueue_writer::EnqueueWriter;
use crate::metrics::Writer;
use crate::ready::Ready;
use crate::{batch, metrics, obituary, promoter};

/// Settlements that wait for the writer. A stream that finds no room is closed; its worker keeps the results and sends
/// them again.
const QUEUED: usize = 8_192;

/// One line a second about refused settlements: a worker may send thousands of them in one message.
static STALE_LINES: LazyLock<LogLimit> = LazyLock::new(LogLimit::per_second);

/// One settlement, on the way.
pub struct Request {
    /// The lease.
    pub holder: Holder,
    /// How the attempt ended; checked.
    pub outcome: Outcome,
    /// Where the answer goes.
    pub answer: mpsc::UnboundedSender<v1::SettleAck>,
}

/// What became of a settlement.
#[derive(Debug, Clone)]
enum Verdict {
    Applied(v1::EffectVerdict),
    Rejected(String),
}

/// The way to the writer.
#[derive(Clone)]
pub struct Handle(mpsc::Sender<Request>);

impl Handle {
    /// Prepares a writer; the returned task must be run.
    pub fn new(
        store: Store,
        registry: Arc<Registry>,
        ready: Ready,
        promoter: promoter::Handle,
        enqueuer: EnqueueWriter,
    ) -> (Self, impl Future<Output = anyhow::Result<()>>) {
        let (sender, queue) = mpsc::channel(QUEUED);
        let line = store.hot_line();
        let task = Task { store, line, registry, ready, promoter, enqueuer };
        (Self(sender), run(task, queue))
    }

    /// Hands a settlement over. False: there is no room.
    pub fn settle(&self, request: Request) -> bool {
        self.0.try_send(request).is_ok()
    }
}

struct Task {
    store: Store,
    line: Line,
    registry: Arc<Registry>,
    ready: Ready,
    promoter: promoter::Handle,
    enqueuer: EnqueueWriter,
}

async fn run(mut task: Task, mut queue: mpsc::Receiver<Request>) -> anyhow::Result<()> {
    while let Some(mut requests) = batch::next(&mut queue, MAX_BATCH, |_| 1).await {
        requests.sort_by_key(|request| request.holder);
        let (succeeded, ended): (Vec<_>, Vec<_>) =
            requests.into_iter().partition(|request| matches!(request.outcome, Outcome::Succeeded(_)));
        let (leading, plain): (Vec<_>, Vec<_>) = succeeded.into_iter().partition(
            |request| matches!(&request.outcome, Outcome::Succeeded(success) if !success.follow_ups.is_empty()),
        );
        task.settle(&plain, Kind::Plain).await;
        task.settle(&ended, Kind::Ended).await;
        // One by one: each stands or falls with its follow-up jobs.
        for request in &leading {
            task.settle(std::slice::from_ref(request), Kind::Leading).await;
        }
    }
    Ok(())
}

/// What a batch consists of.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Successes without follow-up jobs.
    Plain,
    /// Anything but successes.
    Ended,
    /// A single success with follow-up jobs.
    Leading,
}

impl Task {
    /// Settles a batch and answers, repeating while the database is away: a worker's result is not lost by a restart of
    /// PostgreSQL, and the repetition of a commit whose answer was lost finds it settled.
    async fn settle(&mut self, requests: &[Request], kind: Kind) {
        if requests.is_empty() {
            return;
        }
        let mut patience = batch::Patience::default();
        loop {
            let (store, began) = (self.store.clone(), Instant::now());
            match store.within(Box::pin(self.attempt(requests, kind))).await {
                Ok(verdicts) => {
                    metrics::committed(Writer::Settle, began);
                    return self.answer(requests, verdicts).await;
                }
                Err(error) if error.is_data() => return self.split(requests, kind).await,
                Err(error) => batch::complain("a settlement", &error),
            }
            patience.wait().await;
        }
    }

    /// One bad row never stops its neighbours; alone, it is rejected, and its worker fails the job for good.
    async fn split(&mut self, requests: &[Request], kind: Kind) {
        if let [request] = requests {
            let verdict = Verdict::Rejected("the database refused the data of the outcome".to_owned());
            return self.answer(std::slice::from_ref(request), vec![Some(verdict)]).await;
        }
        let (left, right) = requests.split_at(requests.len() / 2);
        Box::pin(self.settle(left, kind)).await;
        Box::pin(self.settle(right, kind)).await;
    }

    async fn attempt(&mut self, requests: &[Request], kind: Kind) -> Result<Vec<Option<Verdict>>, StoreError> {
        match kind {
            Kind::Plain => self.succeed(requests).await,
            Kind::Ended => self.end(requests).await,
            Kind::Leading => self.lead(&requests[0]).await.map(|verdict| vec![verdict]),
        }
    }

    async fn succeed(&mut self, requests: &[Request]) -> Result<Vec<Option<Verdict>>, StoreError> {
        let rows: Vec<Succeeding> = requests.iter().filter_map(succeeding).collect();
        let mut conn = self.line.take().await?;
        let settled = settle_succeeded(&mut conn, &rows).await?;
        self.line.keep(conn);
        let applied = settled.iter().flatten().count();
        metrics::ended(AttemptEnd::Succeeded, applied);
        Ok(settled.into_iter().map(|effect| effect.map(applied_with)).collect())
    }

    async fn end(&mut self, requests: &[Request]) -> Result<Vec<Option<Verdict>>, StoreError> {
        let rows: Vec<Ending> = requests.iter().filter_map(ending).collect();
        let mut conn = self.line.take().await?;
        let mut tx = Transaction::begin(&mut conn).await?;
        let settled = settle_endings(tx.conn(), &rows, &|lane| self.ready.low(lane)).await?;
        tx.commit().await?;
        self.line.keep(conn);
        self.tell(&rows, &settled);
        let verdict = |settled: Option<_>| settled.map(|_| Verdict::Applied(v1::EffectVerdict::Unspecified));
        Ok(settled.into_iter().map(verdict).collect())
    }

    /// Wakes whoever has to do with where the jobs went.
    fn tell(&self, rows: &[Ending], settled: &[Option<(Next, Lane)>]) {
        let mut hints: Vec<Hint> = Vec::new();
        let mut deaths: Vec<Death> = Vec::new();
        let mut scheduled = false;
        for (row, settled) in rows.iter().zip(settled) {
            let Some((next, lane)) = settled else { continue };
            metrics::ended(row.end, 1);
            match next {
                Next::Ready(_) => hints.push(Hint::anywhere(*lane)),
                Next::Scheduled(..) => scheduled = true,
                Next::Dead(..) => deaths.extend(Death::of(row.holder.job, row.holder.token, *lane, *next)),
            }
        }
        obituary::dead(&self.registry, &deaths);
        self.ready.tell(hints);
        if scheduled {
            self.promoter.look();
        }
    }

    /// A success with follow-up jobs: all of it in one transaction, or nothing.
    async fn lead(&mut self, request: &Request) -> Result<Option<Verdict>, StoreError> {
        let Outcome::Succeeded(success) = &request.outcome else { return Ok(None) };
        let lanes = self.enqueuer.lanes(&success.follow_ups).await?;
        let mut rows = Vec::with_capacity(success.follow_ups.len());
        for ((ordinal, job), lane) in success.follow_ups.iter().enumerate().zip(lanes) {
            let lane = match lane {
                Ok(lane) => lane,
                Err(StoreError::Full(what)) => {
                    return Ok(Some(Verdict::Rejected(format!("succeeded.follow_ups[{ordinal}].{what}"))));
                }
                Err(error) => return Err(error),
            };
            let mut job = job.clone();
            if job.key.is_none() {
                let key = format!("follow-up/{}/{ordinal}", request.holder.job);
                job.key = queue_core::IdempotencyKey::new(&key).ok();
            }
            rows.push(EnqueueRow { job, lane, parent: Some(request.holder.job) });
        }
        let mut conn = self.store.enqueue().await?;
        let mut tx = Transaction::begin(&mut conn).await?;
        let settled = settle_succeeded(tx.conn(), &succeeding(request).into_iter().collect::<Vec<_>>()).await?;
        let Some(effect) = settled.into_iter().next().flatten() else { return Ok(None) };
        let stored = enqueue(tx.conn(), &rows).await?;
        if let Some(at) = stored.iter().position(|stored| matches!(stored, Enqueued::Conflict(_))) {
            let reason = format!("succeeded.follow_ups[{at}].idempotency_key: belongs to a job with other content");
            return Ok(Some(Verdict::Rejected(reason)));
        }
        tx.commit().await?;
        metrics::ended(AttemptEnd::Succeeded, 1);
        self.ready.tell(rows.iter().map(|row| Hint::anywhere(row.lane)));
        self.promoter.look();
        Ok(Some(applied_with(effect)))
    }

    /// Answers after the commit. What no lease matched is looked up: settled before, or lost.
    async fn answer(&mut self, requests: &[Request], verdicts: Vec<Option<Verdict>>) {
        let unmatched = requests.iter().zip(&verdicts).filter(|(_, verdict)| verdict.is_none());
        let unmatched: Vec<Holder> = unmatched.map(|(request, _)| request.holder).collect();
        let mut past = self.past(&unmatched).await.into_iter();
        let mut answered: BTreeMap<v1::SettleVerdict, u64> = BTreeMap::new();
        for (request, verdict) in requests.iter().zip(verdicts) {
            let mut ack = v1::SettleAck {
                job_id: request.holder.job.get(),
                token: request.holder.token.get(),
                ..v1::SettleAck::default()
            };
            match verdict {
                Some(Verdict::Applied(effect)) => {
                    ack.set_verdict(v1::SettleVerdict::Applied);
                    ack.set_effect(effect);
                }
                Some(Verdict::Rejected(reason)) => {
                    ack.set_verdict(v1::SettleVerdict::Rejected);
                    ack.reason = reason;
                }
                None if past.next() == Some(Past::Settled) => ack.set_verdict(v1::SettleVerdict::Duplicate),
                None => {
                    if let Some(suppressed) = STALE_LINES.allow("stale", Instant::now()) {
                        tracing::info!(job.id = %request.holder.job, lease.token = %request.holder.token, suppressed, "stale settlement refused");
                    }
                    ack.set_verdict(v1::SettleVerdict::Fenced);
                }
            }
            *answered.entry(ack.verdict()).or_default() += 1;
            // A stream that has ended needs no answer: its worker sends the settlement again and finds it settled.
            let _ = request.answer.send(ack);
        }
        for (verdict, count) in answered {
            metrics::settled(verdict, count);
        }
    }

    async fn past(&mut self, holders: &[Holder]) -> Vec<Past> {
        let mut patience = batch::Patience::default();
        while !holders.is_empty() {
            let line = &mut self.line;
            let looked_up = async {
                let mut conn = line.take().await?;
                let past = look_up(&mut conn, holders).await?;
                line.keep(conn);
                Ok(past)
            };
            match self.store.within(looked_up).await {
                Ok(past) => return past,
                Err(error) => batch::complain("a look-up", &error),
            }
            patience.wait().await;
        }
        Vec::new()
    }
}

fn succeeding(request: &Request) -> Option<Succeeding<'_>> {
    let Outcome::Succeeded(success) = &request.outcome else { return None };
    Some(Succeeding { holder: request.holder, result: success.result.as_deref(), effect: success.effect.as_deref() })
}

fn ending(request: &Request) -> Option<Ending> {
    let holder = request.holder;
    let chance = rand::random::<f64>();
    let plain = |end, text| Ending { holder, end, retryable: true, wait: None, code: None, text, chance };
    match &request.outcome {
        Outcome::Succeeded(_) => None,
        Outcome::Released { reason } => Some(plain(AttemptEnd::Released, Some(reason.clone()))),
        Outcome::Snoozed(duration) => Some(Ending { wait: Some(*duration), ..plain(AttemptEnd::Snoozed, None) }),
        Outcome::Failed(failure) => Some(Ending {
            retryable: failure.retryable,
            wait: failure.retry_after,
            code: Some(failure.code.clone()),
            ..plain(AttemptEnd::Failed, Some(failure.message.clone()))
        }),
    }
}

fn applied_with(effect: SettledEffect) -> Verdict {
    Verdict::Applied(match effect {
        SettledEffect::None => v1::EffectVerdict::Unspecified,
        SettledEffect::Applied => v1::EffectVerdict::Applied,
        SettledEffect::Repeated => v1::EffectVerdict::Repeated,
    })
}
