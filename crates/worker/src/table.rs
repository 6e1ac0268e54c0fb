//! What the worker holds: slots taken by handlers, and results that are not acknowledged. No I/O; time is handed in.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use queue_core::{DEFAULT_MAX_PAYLOAD_BYTES, Failure, MAX_BATCH, MAX_BATCH_BYTES, Outcome};
use queue_proto::v1;

use crate::attempt::{Attempt, CancelReason, Lease};
use crate::ending::{outcome, said, size};
use crate::runner::Ended;

/// Bytes of one settlement, follow-up jobs included: what a scheduler accepts in one message.
const MAX_SETTLEMENT_BYTES: usize = MAX_BATCH_BYTES;
/// Settlements of one message are collected up to so many bytes; a larger one travels alone.
const SETTLE_BATCH_BYTES: usize = 1 << 20;

/// Leases, handlers and results of one worker.
pub(crate) struct Table {
    runs: HashMap<Lease, Run>,
    results: BTreeMap<Lease, Unacknowledged>,
    timers: BTreeSet<(Duration, Lease)>,
    // Results and grants that the scheduler was not told of on the current stream; may name some that are gone.
    to_settle: VecDeque<Lease>,
    to_acknowledge: VecDeque<Lease>,
    cancel_grace: Duration,
    max_payload_bytes: usize,
}

/// A slot that is taken, until its run ends.
struct Run {
    attempt: Arc<Attempt>,
    // False once the lease is lost or settled without the handler: what it returns counts for nothing.
    held: bool,
    stage: Stage,
    due: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Until its timeout.
    Running,
    /// Told to stop; until the cancel grace is over.
    Stopping,
    /// Dropped at its next await.
    GivenUp,
}

struct Unacknowledged {
    outcome: Outcome,
    // When it was last sent on the current stream.
    sent: Option<Duration>,
    // The scheduler refused what the handler returned; this is our own report of that.
    replaced: bool,
}

impl Table {
    pub(crate) fn new(cancel_grace: Duration) -> Self {
        Self {
            runs: HashMap::new(),
            results: BTreeMap::new(),
            timers: BTreeSet::new(),
            to_settle: VecDeque::new(),
            to_acknowledge: VecDeque::new(),
            cancel_grace,
            max_payload_bytes: DEFAULT_MAX_PAYLOAD_BYTES,
        }
    }

    /// Slots taken: handlers that have not returned, whether their lease is held or not.
    pub(crate) fn slots_taken(&self) -> usize {
        self.runs.len()
    }

    /// Results not yet acknowledged.
    pub(crate) fn unacknowledged(&self) -> usize {
        self.results.len()
    }

    /// Leases held, those of results not yet acknowledged included.
    pub(crate) fn leases(&self) -> impl Iterator<Item = Lease> {
        self.held_runs().map(|(lease, _)| *lease).chain(self.results.keys().copied())
    }

    /// Leases whose handlers have not returned.
    pub(crate) fn running_leases(&self) -> impl Iterator<Item = Lease> {
        self.held_runs().map(|(lease, _)| *lease)
    }

    /// Leases with what their handlers say of their progress.
    pub(crate) fn heartbeat(&self) -> Vec<v1::HeldLease> {
        let held = |lease: &Lease, progress| v1::HeldLease { job_id: lease.0.get(), token: lease.1.get(), progress };
        let running = self.held_runs().map(|(lease, run)| held(lease, run.attempt.progress()));
        running.chain(self.results.keys().map(|lease| held(lease, None))).collect()
    }

    fn held_runs(&self) -> impl Iterator<Item = (&Lease, &Run)> {
        self.runs.iter().filter(|(_, run)| run.held)
    }

    /// Sets the bound on results and effects that the scheduler told.
    pub(crate) fn set_max_payload_bytes(&mut self, bytes: usize) {
        self.max_payload_bytes = bytes;
    }

    /// Whether this lease is known: a grant that is sent twice is run once.
    pub(crate) fn knows(&self, lease: Lease) -> bool {
        self.runs.contains_key(&lease) || self.results.contains_key(&lease)
    }

    /// A slot is taken by an attempt.
    pub(crate) fn granted(&mut self, attempt: Arc<Attempt>, now: Duration) {
        let lease = attempt.lease;
        let due = now + attempt.timeout;
        let run = Run { attempt, held: true, stage: Stage::Running, due: Some(due) };
        self.runs.insert(lease, run);
        self.to_acknowledge.push_back(lease);
        self.timers.insert((due, lease));
    }

    /// A slot is free again. What its handler returned becomes the result, unless the lease is gone or settled.
    ///
    /// Gives the attempt and the error code if it failed.
    pub(crate) fn ended(&mut self, lease: Lease, ended: Ended) -> Option<(Arc<Attempt>, String)> {
        let run = self.runs.remove(&lease)?;
        if let Some(due) = run.due {
            self.timers.remove(&(due, lease));
        }
        if !run.held {
            return None;
        }
        let outcome = outcome(ended, run.attempt.reason());
        let code = if let Outcome::Failed(failure) = &outcome { Some(failure.code.clone()) } else { None };
        self.settle(lease, outcome);
        Some((run.attempt, code?))
    }

    /// Keeps a result until it is acknowledged. One that no scheduler would store becomes a final failure that says so.
    pub(crate) fn settle(&mut self, lease: Lease, outcome: Outcome) {
        let storable = match size(&outcome) {
            bytes if bytes > MAX_SETTLEMENT_BYTES => {
                Err(format!("succeeded: has {bytes} bytes in all, at most {MAX_SETTLEMENT_BYTES} are allowed"))
            }
            _ => outcome.checked(self.max_payload_bytes).map_err(|invalid| invalid.to_string()),
        };
        let outcome = storable.unwrap_or_else(|why| Outcome::Failed(Failure::new("result_refused", &why, false)));
        self.results.insert(lease, Unacknowledged { outcome, sent: None, replaced: false });
        self.to_settle.push_back(lease);
    }

    /// The lease is gone: its handler is stopped, its result dropped. True if a handler was running.
    ///
    /// A result that is already on its way stays until it is answered: the loss may be its own settlement.
    pub(crate) fn lost(&mut self, lease: Lease, now: Duration) -> bool {
        let was_held = self.runs.get(&lease).is_some_and(|run| run.held);
        if let Some(run) = self.runs.get_mut(&lease) {
            run.held = false;
            self.stop(lease, CancelReason::LeaseLost, now);
        }
        was_held
    }

    /// Tells one handler to stop; it settles by itself.
    pub(crate) fn request_cancel(&mut self, lease: Lease, reason: String) {
        if let Some(run) = self.runs.get(&lease) {
            run.attempt.cancel(CancelReason::Requested(reason));
        }
    }

    /// Tells every handler that still runs to stop.
    pub(crate) fn stop_all(&mut self, reason: &CancelReason, now: Duration) {
        let running = self.runs.iter().filter(|(_, run)| run.stage == Stage::Running);
        for lease in running.map(|(lease, _)| *lease).collect::<Vec<_>>() {
            self.stop(lease, reason.clone(), now);
        }
    }

    /// Gives back what waits for a runner, before it starts.
    pub(crate) fn release_queued(&mut self, reason: &CancelReason) {
        let queued = self.runs.iter_mut().filter(|(_, run)| run.held && run.attempt.revoke());
        let leases: Vec<_> = queued.map(|(lease, run)| (run.held = false, *lease).1).collect();
        for lease in leases {
            self.settle(lease, Outcome::Released { reason: said(reason) });
        }
    }

    /// The session is over: nothing is held any more, every handler is told to stop. Returns how many were held.
    pub(crate) fn forget_all(&mut self, now: Duration) -> usize {
        let running: Vec<_> = self.running_leases().collect();
        for lease in &running {
            self.lost(*lease, now);
        }
        self.results.clear();
        self.to_settle.clear();
        self.to_acknowledge.clear();
        running.len()
    }

    /// Tells a handler to stop, and sets the time until which it may take to.
    fn stop(&mut self, lease: Lease, reason: CancelReason, now: Duration) {
        let due = now + self.cancel_grace;
        let Some(run) = self.runs.get_mut(&lease).filter(|run| run.stage == Stage::Running) else { return };
        run.attempt.cancel(reason);
        run.stage = Stage::Stopping;
        self.set_due(lease, Some(due));
    }

    fn set_due(&mut self, lease: Lease, due: Option<Duration>) {
        let Some(run) = self.runs.get_mut(&lease) else { return };
        if let Some(old) = std::mem::replace(&mut run.due, due) {
            self.timers.remove(&(old, lease));
        }
        self.timers.extend(due.map(|due| (due, lease)));
    }

    /// When [`Table::tick`] is next needed.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Does what is due: timeouts, and handlers that ignore their cancellation.
    pub(crate) fn tick(&mut self, now: Duration) {
        while let Some((due, lease)) = self.timers.first().copied().filter(|(due, _)| *due <= now) {
            let Some(run) = self.runs.get(&lease) else {
                self.timers.remove(&(due, lease));
                continue;
            };
            match run.stage {
                Stage::Running => self.check_timeout(lease, now),
                Stage::Stopping | Stage::GivenUp => self.give_up(lease),
            }
        }
    }

    /// The time is counted from the start of the handler, which may have had to wait for a thread.
    fn check_timeout(&mut self, lease: Lease, now: Duration) {
        let Some(run) = self.runs.get(&lease) else { return };
        let due = run.attempt.started_at().map_or(now, |started| started) + run.attempt.timeout;
        if due <= now {
            self.stop(lease, CancelReason::TimedOut, now);
        } else {
            self.set_due(lease, Some(due));
        }
    }

    /// Settles everything that still runs without its handler.
    pub(crate) fn give_up_all(&mut self) {
        for lease in self.runs.keys().copied().collect::<Vec<_>>() {
            self.give_up(lease);
        }
    }

    /// Settles without the handler, and has it dropped at its next await. Its slot stays taken until then.
    fn give_up(&mut self, lease: Lease) {
        self.set_due(lease, None);
        let Some(run) = self.runs.get_mut(&lease) else { return };
        run.stage = Stage::GivenUp;
        run.attempt.abort.cancel();
        if std::mem::replace(&mut run.held, false) {
            let outcome = outcome(Ended::Dropped, run.attempt.reason());
            self.settle(lease, outcome);
        }
    }

    /// Leases to acknowledge as arrived: at most `max`, each once per stream.
    pub(crate) fn take_acknowledgements(&mut self, max: usize) -> Vec<Lease> {
        let runs = &self.runs;
        let fresh = self.to_acknowledge.drain(..self.to_acknowledge.len().min(max));
        fresh.filter(|lease| runs.get(lease).is_some_and(|run| run.held)).collect()
    }

    /// A new stream: everything is said again on it.
    pub(crate) fn start_over(&mut self) {
        self.to_acknowledge = self.running_leases().collect();
        self.to_settle = self.results.keys().copied().collect();
        self.results.values_mut().for_each(|result| result.sent = None);
    }

    /// Sends again what was sent before `stale` and is not answered: a repeat does no harm.
    pub(crate) fn repeat_settlements(&mut self, stale: Duration) {
        for (lease, result) in &mut self.results {
            if result.sent.is_some_and(|sent| sent < stale) {
                result.sent = None;
                self.to_settle.push_back(*lease);
            }
        }
    }

    /// Results to send now, one message's worth.
    pub(crate) fn take_settlements(&mut self, now: Duration) -> Vec<v1::Settlement> {
        let mut bytes = 0;
        let mut batch = Vec::new();
        while let Some(lease) = self.to_settle.front().copied().filter(|_| batch.len() < MAX_BATCH) {
            if let Some(result) = self.results.get_mut(&lease).filter(|result| result.sent.is_none()) {
                bytes += size(&result.outcome);
                if bytes > SETTLE_BATCH_BYTES && !batch.is_empty() {
                    break;
                }
                result.sent = Some(now);
                let outcome = Some(result.outcome.clone().into());
                batch.push(v1::Settlement { job_id: lease.0.get(), token: lease.1.get(), outcome });
            }
            self.to_settle.pop_front();
        }
        batch
    }

    /// A result was answered: it is forgotten.
    pub(crate) fn acknowledged(&mut self, lease: Lease) {
        self.results.remove(&lease);
    }

    /// A result was refused for its content: the job fails for good with that reason. False if that was refused too.
    pub(crate) fn rejected(&mut self, lease: Lease, reason: &str) -> bool {
        match self.results.get_mut(&lease) {
            Some(result) if !result.replaced => {
                let outcome = Outcome::Failed(Failure::new("result_refused", reason, false));
                *result = Unacknowledged { outcome, sent: None, replaced: true };
                self.to_settle.push_back(lease);
                true
            }
            _ => {
                self.results.remove(&lease);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
