//! What the link is told, and what follows from it.

use std::sync::Arc;
use std::time::Duration;

use queue_core::{Failure, Outcome};
use queue_proto::v1;
use tonic::{Code, Status};
use v1::work_response::Message;

use crate::attempt::{Attempt, Lease};
use crate::dialer::Opened;
use crate::link::{Link, Moving, log_losses, new_session};
use crate::stream::{MIN_INTERVAL, Stream};
use crate::timing::margin;
use crate::{Error, clock};

/// Take-overs of the session in a row before it is given up. One is harmless, such as a Hello of our own that arrived
/// late; so many mean that another process has the same session id, as after cloning a machine that runs.
const MAX_TAKEOVERS: u32 = 5;
/// What is assumed where a scheduler tells no lease time or heartbeat interval.
const DEFAULT_LEASE_TTL: Duration = Duration::from_secs(15);
const HEARTBEATS_PER_TTL: u32 = 3;

impl Link {
    /// A stream is open: say everything again on it.
    pub(crate) fn welcomed(&mut self, opened: Opened, now: Duration) {
        let Opened { requests, responses, welcome, hello_at } = opened;
        let ttl = duration(welcome.lease_ttl).unwrap_or(DEFAULT_LEASE_TTL).max(MIN_INTERVAL);
        let interval = duration(welcome.heartbeat_interval).unwrap_or(ttl / HEARTBEATS_PER_TTL).max(MIN_INTERVAL);
        let url = self.dialer.url().to_owned();
        tracing::info!(session.id = %self.session, scheduler = url, lease_ttl = ?ttl, "connected");
        if std::mem::replace(&mut self.welcomed, true) {
            self.runner.metrics.reconnected();
        }
        if let Some(old) = self.stream.replace(Stream::new((requests, responses), url, interval, now)) {
            self.rate(now.saturating_sub(old.opened));
        }
        self.moving = None;
        self.table.start_over();
        if welcome.max_payload_bytes > 0 {
            self.table.set_max_payload_bytes(welcome.max_payload_bytes as usize);
        }
        self.renewed(hello_at, ttl);
        self.lost(welcome.lost, now);
    }

    /// No stream came about.
    ///
    /// Errors: what would be refused for ever, before any scheduler has ever welcomed this worker.
    pub(crate) fn not_welcomed(&mut self, status: &Status, now: Duration) -> Result<(), Error> {
        let hopeless = [Code::InvalidArgument, Code::Unauthenticated, Code::PermissionDenied, Code::Unimplemented];
        if !self.welcomed && hopeless.contains(&status.code()) {
            return Err(Error::Refused {
                scheduler: self.dialer.url().to_owned(),
                reason: status.message().to_owned(),
            });
        }
        let scheduler = self.dialer.url().to_owned();
        let reason = client::advised_reason(&scheduler, status);
        tracing::warn!(session.id = %self.session, scheduler, code = ?status.code(), reason, "cannot open a stream");
        self.dialer.failed();
        self.stream_failed(status, now);
        if self.stream.is_none() || self.moving.is_some() {
            self.dialer.start(now);
        }
        Ok(())
    }

    /// What a status says about the session.
    fn stream_failed(&mut self, status: &Status, now: Duration) {
        match status.code() {
            Code::FailedPrecondition => self.new_session(now, "the session has expired"),
            // While a Hello is on its way, it is our own newer stream that replaced this one.
            Code::Aborted if !self.dialer.is_opening() => {
                self.takeovers += 1;
                if self.takeovers >= MAX_TAKEOVERS {
                    self.new_session(now, "another process uses the session");
                }
            }
            _ => {}
        }
    }

    /// Nothing is held any more; begins anew.
    fn new_session(&mut self, now: Duration, why: &str) {
        tracing::warn!(session.id = %self.session, "{why}: starting a new one");
        log_losses(&self.runner.metrics, self.session, self.table.forget_all(now));
        self.runner.deadline.clear();
        self.session = new_session();
        self.takeovers = 0;
        self.moving = None;
        // Streams that are open or on their way are the old session's.
        self.stream = None;
        self.dialer.reset();
    }

    pub(crate) fn received(&mut self, received: Result<Option<v1::WorkResponse>, Status>, now: Duration) {
        match received {
            Ok(Some(response)) => {
                if let Some(stream) = &mut self.stream {
                    stream.heard = now;
                }
                // A message of a newer scheduler that is not known here says at least that it is alive.
                if let Some(message) = response.message {
                    self.told(message, now);
                }
            }
            Ok(None) => {
                tracing::info!(session.id = %self.session, "the scheduler ended the stream");
                self.lose_stream(now);
            }
            Err(status) => {
                let reason = client::reason(&status);
                tracing::warn!(session.id = %self.session, code = ?status.code(), reason, "the stream broke");
                self.stream_failed(&status, now);
                self.lose_stream(now);
            }
        }
    }

    fn told(&mut self, message: Message, now: Duration) {
        match message {
            Message::Grants(grants) => grants.grants.into_iter().for_each(|grant| self.granted(grant, now)),
            Message::Renewed(renewed) => self.answered(renewed, now),
            Message::SettleAcks(acks) => self.settled(acks.acks),
            Message::Cancel(cancel) => {
                if let Some(Ok(lease)) = cancel.lease.map(Lease::try_from) {
                    self.table.request_cancel(lease, cancel.reason);
                }
            }
            Message::Drain(drain) => {
                let after = duration(drain.reconnect_after).unwrap_or_default();
                tracing::info!(session.id = %self.session, ?after, "the scheduler asks to reconnect elsewhere");
                self.moving = Some(Moving::Asked);
                self.dialer.start_at(now.saturating_add(after));
            }
            // A second welcome means nothing.
            Message::Ping(_) | Message::Welcome(_) => {}
        }
    }

    fn granted(&mut self, grant: v1::Grant, now: Duration) {
        if let Some(stream) = &mut self.stream {
            stream.use_promise();
        }
        let attempt = match Attempt::try_from(grant) {
            Ok(attempt) => Arc::new(attempt),
            Err(invalid) => return tracing::warn!(%invalid, "a grant makes no sense"),
        };
        // A Hello that was said since does not list it. Whoever hears that takes the grant back: it must not run.
        if self.stream.as_ref().is_none_or(|stream| stream.sealed) || self.table.knows(attempt.lease) {
            return;
        }
        match self.begin(&attempt) {
            Ok(()) => self.table.granted(attempt, now),
            Err(outcome) => self.table.settle(attempt.lease, outcome),
        }
    }

    /// Hands an attempt to a runner, or says why not.
    fn begin(&self, attempt: &Arc<Attempt>) -> Result<(), Outcome> {
        let released = |reason: &str| Outcome::Released { reason: reason.to_owned() };
        if self.drain.is_some() {
            return Err(released("shutdown"));
        }
        let handler = self.handlers.get(&attempt.kind).ok_or_else(|| {
            Outcome::Failed(Failure::new("unknown_kind", "the worker has no handler for this kind", true))
        })?;
        if self.table.slots_taken() >= self.settings.concurrency as usize {
            return Err(released("no free slot"));
        }
        self.runner.submit(handler.clone(), attempt.clone()).map_err(|_| released("no free slot"))
    }

    /// A heartbeat was committed: the leases live on.
    fn answered(&mut self, renewed: v1::Renewed, now: Duration) {
        let sent = self.stream.as_mut().and_then(|stream| stream.answered(renewed.sequence));
        if let Some(sent) = sent {
            if let (Some(stream), Some(next)) = (&mut self.stream, duration(renewed.next_heartbeat)) {
                stream.pace(renewed.sequence, next, now);
            }
            self.renewed(sent, duration(renewed.lease_ttl).unwrap_or(self.lease_ttl));
            // Whatever is not answered for half a lease time is said again.
            self.table.repeat_settlements(now.saturating_sub(self.lease_ttl / 2));
            let sealed = self.stream.as_ref().is_some_and(|stream| stream.sealed);
            if self.moving == Some(Moving::Unrenewed) && !sealed {
                self.moving = None;
                self.dialer.stop();
            }
        }
        self.lost(renewed.lost, now);
    }

    fn renewed(&mut self, sent: Duration, ttl: Duration) {
        self.lease_ttl = ttl;
        self.renewed = self.renewed.max(sent);
        let until = (sent + ttl).saturating_sub(margin(ttl));
        self.runner.deadline.extend(until);
        if self.drain.is_none() {
            self.readiness.ready_for(tokio::time::Instant::now(), until.saturating_sub(clock::now()));
        }
    }

    fn lost(&mut self, leases: Vec<v1::LeaseRef>, now: Duration) {
        let leases = leases.into_iter().filter_map(|lease| Lease::try_from(lease).ok());
        let losses = leases.filter(|lease| self.table.lost(*lease, now)).count();
        log_losses(&self.runner.metrics, self.session, losses);
    }

    fn settled(&mut self, acks: Vec<v1::SettleAck>) {
        for ack in acks {
            let verdict = ack.verdict();
            self.runner.metrics.settled(verdict_name(verdict));
            let (Ok(job), Ok(token)) = (ack.job_id.try_into(), ack.token.try_into()) else { continue };
            let lease: Lease = (job, token);
            match verdict {
                v1::SettleVerdict::Rejected => {
                    tracing::warn!(job.id = %job, lease.token = %token, reason = ack.reason, "a result was refused");
                    self.table.rejected(lease, &ack.reason);
                }
                v1::SettleVerdict::Fenced => {
                    tracing::warn!(job.id = %job, lease.token = %token, "the lease was lost before the result came");
                    self.table.acknowledged(lease);
                }
                _ => self.table.acknowledged(lease),
            }
        }
        self.runner.metrics.unacknowledged(self.table.unacknowledged());
    }
}

fn verdict_name(verdict: v1::SettleVerdict) -> &'static str {
    match verdict {
        v1::SettleVerdict::Applied => "applied",
        v1::SettleVerdict::Duplicate => "duplicate",
        v1::SettleVerdict::Fenced => "fenced",
        v1::SettleVerdict::Rejected => "rejected",
        v1::SettleVerdict::Unspecified => "unknown",
    }
}

/// A duration of the scheduler; one that makes no sense is taken as not set.
fn duration<D>(value: Option<D>) -> Option<Duration>
where
    Duration: TryFrom<D>,
{
    value.and_then(|value| Duration::try_from(value).ok())
}
