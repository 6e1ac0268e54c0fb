//! The link to the schedulers: delivery, liveness and settlement, on a thread of its own.
//!
//! Everything that is said follows from state (the table, the credits, the times), so nothing queues up here while a
//! connection is slow or gone, and a new stream only has to say the state again.

use std::time::Duration;

use queue_core::{MAX_CAPACITY, SessionId};
use queue_proto::{lease_ref, v1};
use telemetry::Readiness;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::attempt::{CancelReason, Lease};
use crate::clock;
use crate::dialer::{Dialer, Step};
use crate::handler::Handlers;
use crate::metrics::Metrics;
use crate::runner::{Ended, Runner};
use crate::settings::Settings;
use crate::stream::{Stream, receive, room};
use crate::table::Table;
use crate::{Error, Report};

/// Ends of runs that are handled before the stream is looked at again.
const ENDS_AT_ONCE: usize = 1_000;
/// Results that may wait for acknowledgement besides the slots, as a multiple of the slots, and at least.
const RESULTS_PER_SLOT: usize = 1;
const MIN_RESULTS: usize = 64;
/// The loop wakes at least so often: timers of a process that slept are late, the clock is not.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);
/// After a second signal everything must be said within this.
const HARD_STOP: Duration = Duration::from_millis(500);

/// The state of the link.
pub(crate) struct Link {
    pub(crate) settings: Settings,
    pub(crate) handlers: Handlers,
    pub(crate) runner: Runner,
    pub(crate) ends: mpsc::Receiver<(Lease, Ended)>,
    pub(crate) table: Table,
    pub(crate) dialer: Dialer,
    pub(crate) stream: Option<Stream>,
    pub(crate) session: SessionId,
    pub(crate) lease_ttl: Duration,
    /// Sending time of the last heartbeat or Hello that was answered.
    pub(crate) renewed: Duration,
    /// Streams taken over by somebody with our session id, in a row.
    pub(crate) takeovers: u32,
    /// Whether a scheduler has ever welcomed us.
    pub(crate) welcomed: bool,
    /// Why a stream is wanted elsewhere although this one is open.
    pub(crate) moving: Option<Moving>,
    pub(crate) drain: Option<Drain>,
    pub(crate) readiness: Readiness,
    // The buffer of the stream is full.
    pub(crate) blocked: bool,
    // The deadline has passed and handlers were told so.
    expired: bool,
}

/// Why the worker moves to another scheduler while its stream is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moving {
    /// The scheduler asked for it.
    Asked,
    /// The scheduler does not renew the leases. If it does again, the worker stays.
    Unrenewed,
}

/// The end of a worker's life.
pub(crate) struct Drain {
    // Running jobs are stopped then.
    grace_end: Duration,
    // What is not acknowledged then is reported and left behind.
    flush_end: Duration,
}

impl Link {
    pub(crate) fn new(
        settings: Settings,
        handlers: Handlers,
        runner: Runner,
        ends: mpsc::Receiver<(Lease, Ended)>,
    ) -> Result<Self, Error> {
        let addresses = settings.connect.work_addresses()?;
        let dialer = Dialer::new(addresses, settings.timing, settings.max_message_bytes, rand::random());
        Ok(Self {
            table: Table::new(settings.cancel_grace),
            settings,
            handlers,
            runner,
            ends,
            dialer,
            stream: None,
            session: new_session(),
            lease_ttl: Duration::ZERO,
            renewed: Duration::ZERO,
            takeovers: 0,
            welcomed: false,
            moving: None,
            drain: None,
            readiness: telemetry::readiness(),
            blocked: false,
            expired: false,
        })
    }

    /// Runs until a drain is over or `hard` fires.
    pub(crate) async fn run(mut self, soft: CancellationToken, hard: CancellationToken) -> Result<Report, Error> {
        self.dialer.start_at(clock::now());
        loop {
            let now = clock::now();
            self.tick(now);
            if self.is_over(now) {
                break;
            }
            let wake = self.wake(now).saturating_sub(now);
            let full = self.stream.as_ref().filter(|_| self.blocked).map(|stream| stream.requests.clone());
            tokio::select! {
                () = hard.cancelled() => {
                    self.give_everything_back();
                    break;
                }
                () = soft.cancelled(), if self.drain.is_none() => self.start_drain(clock::now()),
                Some((lease, ended)) = self.ends.recv() => self.ended(lease, ended),
                received = receive(&mut self.stream) => self.received(received, clock::now()),
                step = self.dialer.step() => self.dialed(step, clock::now())?,
                () = room(full) => {}
                () = tokio::time::sleep(wake) => {}
            }
        }
        let bound = if hard.is_cancelled() { HARD_STOP } else { self.settings.timing.farewell };
        Ok(self.leave(bound).await)
    }

    /// Does everything that time and state ask for.
    fn tick(&mut self, now: Duration) {
        self.check_deadline(now);
        self.table.tick(now);
        if self.drain.as_ref().is_some_and(|drain| now >= drain.grace_end) {
            self.table.stop_all(&CancelReason::ShuttingDown, now);
        }
        self.check_stream(now);
        self.flush(now);
    }

    /// Past the deadline no handler may run: another worker may have the job.
    fn check_deadline(&mut self, now: Duration) {
        let held = self.runner.deadline.holds(now);
        if !held && !self.expired && self.welcomed {
            let running = self.table.running_leases().count();
            if running > 0 {
                tracing::warn!(session.id = %self.session, running, "no renewal in time: stopping all handlers");
            }
            self.readiness.not_ready("no renewal of the leases");
        }
        self.expired = !held;
        if !held {
            self.table.stop_all(&CancelReason::LeaseExpired, now);
        }
    }

    fn check_stream(&mut self, now: Duration) {
        let Some(stream) = &self.stream else { return };
        if now.saturating_sub(stream.heard) > self.settings.timing.silence {
            tracing::warn!(session.id = %self.session, scheduler = stream.url, "scheduler is silent");
            self.lose_stream(now);
        } else if now.saturating_sub(self.renewed) > self.lease_ttl / 2 && self.dialer.is_idle() {
            // It talks but does not renew: look for another one, and keep this one until that is found.
            tracing::warn!(session.id = %self.session, scheduler = stream.url, "scheduler does not renew the leases");
            self.moving = Some(Moving::Unrenewed);
            self.dialer.start(now);
        }
    }

    /// The stream is gone; leases stay.
    pub(crate) fn lose_stream(&mut self, now: Duration) {
        if let Some(stream) = self.stream.take() {
            self.rate(now.saturating_sub(stream.opened));
        }
        self.blocked = false;
        self.dialer.start(now);
    }

    /// Judges a stream by how long it lived.
    pub(crate) fn rate(&mut self, lived: Duration) {
        if lived >= self.settings.timing.stable {
            self.dialer.succeeded();
            self.takeovers = 0;
        } else {
            self.dialer.failed();
        }
    }

    fn dialed(&mut self, step: Step, now: Duration) -> Result<(), Error> {
        match step {
            Step::Connected(connection) => {
                let hello = self.hello();
                if let Some(stream) = &mut self.stream {
                    stream.sealed = true;
                }
                self.dialer.open(connection, hello);
            }
            Step::Opened(opened) => self.welcomed(*opened, now),
            Step::Failed(status) => self.not_welcomed(&status, now)?,
        }
        Ok(())
    }

    fn hello(&self) -> v1::Hello {
        v1::Hello {
            worker_name: self.settings.name.as_str().to_owned(),
            session_id: self.session.0.to_vec().into(),
            queues: self.settings.queues.iter().map(|queue| queue.as_str().to_owned()).collect(),
            kinds: self.handlers.keys().cloned().collect(),
            capacity: self.settings.concurrency,
            max_message_bytes: u32::try_from(self.settings.max_message_bytes).ok(),
            build: self.settings.build.clone(),
            leases: self.table.leases().map(lease_ref).collect(),
        }
    }

    fn ended(&mut self, lease: Lease, ended: Ended) {
        self.end(lease, ended);
        // What ended in the meantime settles in the same message.
        for _ in 0..ENDS_AT_ONCE {
            let Ok((lease, ended)) = self.ends.try_recv() else { break };
            self.end(lease, ended);
        }
        self.runner.metrics.unacknowledged(self.table.unacknowledged());
    }

    fn end(&mut self, lease: Lease, ended: Ended) {
        let Some((attempt, code)) = self.table.ended(lease, ended) else { return };
        // The code and not the text: that is the handler's, and may repeat its input.
        tracing::warn!(
            job.id = %lease.0,
            job.kind = attempt.kind,
            job.queue = attempt.queue,
            lease.token = %lease.1,
            attempt = attempt.number,
            session.id = %self.session,
            error.code = code,
            "attempt failed"
        );
    }

    /// Slots that may be promised now: each is free, and there is room for the result.
    pub(crate) fn free_slots(&self, now: Duration) -> usize {
        let Some(stream) = &self.stream else { return 0 };
        if self.drain.is_some() || self.moving.is_some() || stream.sealed || !self.runner.deadline.holds(now) {
            return 0;
        }
        let capacity = self.settings.concurrency as usize;
        let promised = self.table.slots_taken() + stream.outstanding();
        // A session holds at most so many leases, results included.
        let holdable = (capacity + (capacity * RESULTS_PER_SLOT).max(MIN_RESULTS)).min(MAX_CAPACITY as usize);
        capacity.saturating_sub(promised).min(holdable.saturating_sub(promised + self.table.unacknowledged()))
    }

    fn start_drain(&mut self, now: Duration) {
        let running = self.table.running_leases().count();
        tracing::info!(session.id = %self.session, running, grace = ?self.settings.drain_grace, "draining");
        self.readiness.not_ready("draining");
        let grace_end = now + self.settings.drain_grace;
        let flush_end = grace_end + self.settings.cancel_grace + self.settings.timing.flush;
        self.drain = Some(Drain { grace_end, flush_end });
        self.table.release_queued(&CancelReason::ShuttingDown);
    }

    /// Whether a drain has nothing left to wait for.
    fn is_over(&mut self, now: Duration) -> bool {
        let idle = self.table.running_leases().next().is_none();
        let Some(drain) = &mut self.drain else { return false };
        if idle {
            // The handlers are done, so the results get their time from now on and not from the end of the grace.
            drain.flush_end = drain.flush_end.min(now + self.settings.timing.flush);
        }
        (idle && self.table.unacknowledged() == 0) || now >= drain.flush_end
    }

    /// Says farewell, which gives back whatever is still held, and tells what was not acknowledged.
    async fn leave(mut self, bound: Duration) -> Report {
        self.readiness.not_ready("stopped");
        let report = Report { unacknowledged: self.table.leases().collect(), handlers_left: self.table.slots_taken() };
        if let Some(stream) = self.stream.take() {
            // Whoever does not take the farewell learns of it by the end of the lease time.
            let _ = tokio::time::timeout(bound, crate::outbound::farewell(stream)).await;
        }
        report
    }

    /// The second signal: wait for nothing.
    fn give_everything_back(&mut self) {
        let now = clock::now();
        self.start_drain(now);
        self.table.stop_all(&CancelReason::ShuttingDown, now);
        self.table.give_up_all();
        self.flush(now);
    }

    /// When the loop must look again, at the latest.
    fn wake(&self, now: Duration) -> Duration {
        let mut wake = now + LONGEST_SLEEP;
        let mut by = |time: Duration| wake = wake.min(time);
        self.table.next_due().into_iter().for_each(&mut by);
        if self.welcomed && !self.expired {
            by(self.runner.deadline.get());
        }
        if let Some(stream) = &self.stream {
            by(stream.next_heartbeat);
            by(stream.spoke + self.settings.timing.ping);
            by(stream.heard + self.settings.timing.silence);
        }
        if let Some(drain) = &self.drain {
            by(drain.flush_end);
            if now < drain.grace_end {
                by(drain.grace_end);
            }
        }
        // Never zero, so that something that is due and cannot be done does not turn the loop into a spin.
        wake.max(now + Duration::from_millis(1))
    }
}

/// A session id that nobody else has.
pub(crate) fn new_session() -> SessionId {
    SessionId(uuid::Uuid::new_v4().into_bytes())
}

/// A counted loss of leases.
pub(crate) fn log_losses(metrics: &Metrics, session: SessionId, losses: usize) {
    if losses > 0 {
        metrics.lost(losses);
        tracing::warn!(session.id = %session, leases = losses, "leases are lost");
    }
}
