//! Grants on their way: as messages, and until they are acknowledged.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use queue_core::{JobId, Token};
use queue_proto::{millis, v1};
use queue_store::{Claimed, Registry};
use tokio::time::Instant;

/// What a message carries besides payloads, per job: names, numbers, framing.
const OVERHEAD: usize = 1_024;

/// Jobs that a statement has leased for one session.
#[derive(Debug)]
pub struct Claims {
    /// When that statement was asked for: before any of these leases began.
    pub asked: Instant,
    /// The jobs.
    pub jobs: Vec<Claimed>,
}

/// Packs claimed jobs into messages of at most `max_bytes`, though never less than one job.
pub fn messages(jobs: Vec<Claimed>, registry: &Registry, ttl: Duration, max_bytes: usize) -> Vec<v1::Grants> {
    let mut messages: Vec<v1::Grants> = Vec::new();
    let mut room = 0;
    for job in jobs {
        let grant = grant(job, registry, ttl);
        let size = size(&grant);
        if size > room || messages.is_empty() {
            messages.push(v1::Grants::default());
            room = max_bytes;
        }
        room = room.saturating_sub(size);
        if let Some(message) = messages.last_mut() {
            message.grants.push(grant);
        }
    }
    messages
}

fn size(grant: &v1::Grant) -> usize {
    let headers: usize = grant.headers.iter().map(|(name, value)| name.len() + value.len() + 16).sum();
    grant.payload.len() + headers + OVERHEAD
}

fn grant(job: Claimed, registry: &Registry, ttl: Duration) -> v1::Grant {
    let name = |name: Option<String>| name.unwrap_or_default();
    v1::Grant {
        job_id: job.job.get(),
        token: job.token.get(),
        attempt: job.used.attempts.saturating_add(1),
        queue: name(registry.queue_name(job.lane.queue).map(|queue| queue.as_str().to_owned())),
        kind: name(registry.kind_name(job.lane.kind).map(|kind| kind.as_str().to_owned())),
        payload: job.payload,
        headers: headers(job.headers.as_ref()),
        idempotency_key: job.key,
        traceparent: job.traceparent,
        timeout: Some(millis(job.timeout)),
        max_attempts: job.max_attempts,
        lease_ttl: Some(millis(ttl)),
    }
}

/// Stored headers as they travel.
pub fn headers(stored: Option<&serde_json::Value>) -> HashMap<String, String> {
    let entries = stored.and_then(serde_json::Value::as_object).into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

/// A grant that was not acknowledged yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sent {
    /// When it must be looked at.
    deadline: Instant,
    /// When it was sent.
    pub at: Instant,
    /// The job.
    pub job: JobId,
    /// Token of the lease.
    pub token: Token,
}

/// Grants that were not acknowledged yet.
#[derive(Debug, Default)]
pub struct Unacknowledged {
    granted: HashMap<(JobId, Token), Sent>,
    by_deadline: BTreeSet<Sent>,
}

impl Unacknowledged {
    /// A grant is on its way and should be acknowledged within so long.
    pub fn add(&mut self, job: JobId, token: Token, at: Instant, within: Duration) {
        let sent = Sent { deadline: at + within, at, job, token };
        self.granted.insert((job, token), sent);
        self.by_deadline.insert(sent);
    }

    /// A grant is looked at again after so long.
    pub fn postpone(&mut self, sent: Sent, now: Instant, wait: Duration) {
        let sent = Sent { deadline: now + wait, ..sent };
        self.granted.insert((sent.job, sent.token), sent);
        self.by_deadline.insert(sent);
    }

    /// A grant has arrived, or its lease has ended. Returns whether that was waited for.
    pub fn remove(&mut self, job: JobId, token: Token) -> bool {
        self.granted.remove(&(job, token)).is_some_and(|sent| self.by_deadline.remove(&sent))
    }

    /// All of them.
    pub fn all(&self) -> HashSet<(JobId, Token)> {
        self.granted.keys().copied().collect()
    }

    /// When the first of them is late.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.by_deadline.first().map(|sent| sent.deadline)
    }

    /// Takes out those that are late.
    pub fn late(&mut self, now: Instant) -> Vec<Sent> {
        let mut late = Vec::new();
        while let Some(sent) = self.by_deadline.first().copied().filter(|sent| sent.deadline <= now) {
            self.by_deadline.remove(&sent);
            self.granted.remove(&(sent.job, sent.token));
            late.push(sent);
        }
        late
    }
}
