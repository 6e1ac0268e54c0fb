//! The writer that renews sessions, on connections of its own, and compares what workers hold with what the database says.
//!
//! It paces the heartbeats: each answer tells when the next one is expected, so that those of many sessions come together
//! and are one statement, not one each.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use queue_core::{JobId, Token};
use queue_store::{
    HeldLease, Holder, Owner, PgConnection, Renewal, Store, StoreError, dead_sessions, held_leases, overdue_leases,
    renew, still_held,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};

use crate::timing::Timing;
use crate::{batch, dispatcher, take_back};

/// Heartbeats that wait for the writer; one per session is under way at most.
const QUEUED: usize = 8_192;
/// Sessions of one statement, and about as many heartbeats are asked for at one time.
const SESSIONS_PER_BATCH: usize = 1_000;
/// Part of the heartbeat interval in which heartbeats are gathered.
const GATHER: u32 = 50;

/// A lease as a worker lists it.
pub type Listed = (JobId, Token);

/// One heartbeat, on the way.
pub struct Request {
    /// Proves that this scheduler serves the session.
    pub owner: Owner,
    /// Every lease the worker says it holds.
    pub listed: HashSet<Listed>,
    /// What it was granted and has not acknowledged: it may be on its way.
    pub awaited: HashSet<Listed>,
    /// Whether everything that was leased for it by then had been sent.
    pub quiet: bool,
    /// When the heartbeat arrived.
    pub received: Instant,
    /// Where the answer goes. Dropped if the database could not renew.
    pub answer: oneshot::Sender<Answer>,
}

/// What became of a heartbeat, after the commit.
#[derive(Debug)]
pub enum Answer {
    /// Renewed.
    Renewed {
        /// When the next heartbeat is expected.
        next: Duration,
        /// Listed leases that the session does not hold.
        lost: Vec<Listed>,
        /// Leases whose handlers should have ended by themselves long ago.
        overdue: Vec<Listed>,
    },
    /// Another stream has taken the session over.
    Superseded,
    /// The session is dead.
    Expired,
}

/// The way to the writer.
#[derive(Clone)]
pub struct Handle(mpsc::Sender<Request>);

impl Handle {
    /// Prepares a writer; the returned task must be run.
    pub fn new(
        store: Store,
        timing: Timing,
        dispatcher: dispatcher::Handle,
        take_back: take_back::Handle,
    ) -> (Self, impl Future<Output = anyhow::Result<()>>) {
        let (sender, queue) = mpsc::channel(QUEUED);
        let pace = Pace { origin: Instant::now(), interval: timing.heartbeat };
        (Self(sender), run(Task { store, timing, pace, dispatcher, take_back }, queue))
    }

    /// Hands a heartbeat over. Without room it is dropped: the next one comes.
    pub fn renew(&self, request: Request) {
        let _ = self.0.try_send(request);
    }
}

/// Tells sessions that were not renewed why: it decides whether their workers may come back with them. Without an answer
/// of the database they are told nothing, and ask again.
async fn refuse(conn: &mut PgConnection, refused: HashMap<i64, Request>) -> Result<(), StoreError> {
    if refused.is_empty() {
        return Ok(());
    }
    let sessions: Vec<i64> = refused.keys().copied().collect();
    let dead: HashSet<i64> = dead_sessions(conn, &sessions).await?.into_iter().collect();
    for (session, request) in refused {
        let _ = request.answer.send(if dead.contains(&session) { Answer::Expired } else { Answer::Superseded });
    }
    Ok(())
}

/// When heartbeats are expected: at the same moments for as many sessions as one statement renews.
#[derive(Debug, Clone, Copy)]
struct Pace {
    origin: Instant,
    interval: Duration,
}

impl Pace {
    /// How long after `now` the next heartbeat of a session is expected, where so many are served: an interval at most.
    fn next(&self, session: i64, sessions: usize, now: Instant) -> Duration {
        let groups = u32::try_from(sessions.div_ceil(SESSIONS_PER_BATCH)).unwrap_or(u32::MAX).max(1);
        let group = u32::try_from(session.rem_euclid(groups.into())).unwrap_or_default();
        let moment = self.interval * group / groups;
        let elapsed = (now - self.origin).as_nanos() % self.interval.as_nanos().max(1);
        let elapsed = Duration::from_nanos(elapsed.try_into().unwrap_or_default());
        match moment.saturating_sub(elapsed) {
            Duration::ZERO => self.interval.saturating_sub(elapsed) + moment,
            rest => rest,
        }
    }
}

struct Task {
    store: Store,
    timing: Timing,
    pace: Pace,
    dispatcher: dispatcher::Handle,
    take_back: take_back::Handle,
}

async fn run(task: Task, mut queue: mpsc::Receiver<Request>) -> anyhow::Result<()> {
    while let Some(first) = queue.recv().await {
        // Those that are expected at the same moment come a little apart.
        sleep(task.timing.heartbeat / GATHER).await;
        let requests = batch::with(first, &mut queue, SESSIONS_PER_BATCH, |_| 1);
        if let Err(error) = task.store.within(task.renew(requests)).await {
            // No answer is the right answer: workers move to a scheduler that can renew.
            batch::complain("a renewal", &error);
        }
    }
    Ok(())
}

impl Task {
    async fn renew(&self, requests: Vec<Request>) -> Result<(), StoreError> {
        // A heartbeat that waited for so long was followed by another. A session's newest stands for all.
        let fresh = requests.into_iter().filter(|request| request.received.elapsed() < self.timing.heartbeat);
        let by_owner: BTreeMap<Owner, Request> = fresh.map(|request| (request.owner, request)).collect();
        if by_owner.is_empty() {
            return Ok(());
        }
        let owners: Vec<Owner> = by_owner.keys().copied().collect();
        let mut conn = self.store.vital().await?;
        let renewals = renew(&mut conn, &owners, self.timing.ttl).await?;
        let (mut renewed, mut refused) = (HashMap::new(), HashMap::new());
        for ((owner, request), renewal) in by_owner.into_iter().zip(renewals) {
            match renewal {
                Renewal::Renewed => _ = renewed.insert(owner.session_no, request),
                Renewal::Superseded => _ = refused.insert(owner.session_no, request),
            }
        }
        let (sessions, now) = (self.dispatcher.sessions(), Instant::now());
        let next = |owner: Owner| self.pace.next(owner.session_no, sessions, now);
        // The renewals are committed: they are answered also if this look fails.
        match self.look(&mut conn, &renewed).await {
            Ok((mut held, overdue)) => {
                for (session, request) in renewed {
                    let held = held.remove(&session).unwrap_or_default();
                    let (lost, overdue) = self.compare(&request, &held, &overdue);
                    let next = next(request.owner);
                    let _ = request.answer.send(Answer::Renewed { next, lost, overdue });
                }
            }
            Err(error) => {
                for request in renewed.into_values() {
                    let (next, lost, overdue) = (next(request.owner), Vec::new(), Vec::new());
                    let _ = request.answer.send(Answer::Renewed { next, lost, overdue });
                }
                return Err(error);
            }
        }
        refuse(&mut conn, refused).await
    }

    /// What sessions hold, and what of it is overdue, by how much. Of most only what they list is looked at, and only leases
    /// that are old enough are compared with their jobs.
    async fn look(
        &self,
        conn: &mut PgConnection,
        renewed: &HashMap<i64, Request>,
    ) -> Result<(HashMap<i64, Vec<HeldLease>>, HashMap<Listed, Duration>), StoreError> {
        let nudge = self.timing.overdue / 2;
        let began = Instant::now();
        let all = self.dispatcher.unlooked(renewed.keys().copied(), self.timing.doubt());
        let named: Vec<Holder> = renewed
            .iter()
            .filter(|(session, _)| !all.contains(session))
            .flat_map(|(&session_no, request)| {
                request.listed.iter().map(move |&(job, token)| Holder { job, token, session_no })
            })
            .collect();
        let mut leases = Vec::new();
        if !all.is_empty() {
            leases = held_leases(&mut *conn, &all.iter().copied().collect::<Vec<_>>()).await?;
            self.dispatcher.looked(&all, began);
        }
        if !named.is_empty() {
            leases.extend(still_held(&mut *conn, &named).await?);
        }
        let old: Vec<HeldLease> = leases.iter().copied().filter(|lease| lease.age > nudge).collect();
        let overdue = if old.is_empty() { Vec::new() } else { overdue_leases(conn, &old, nudge).await? };
        let mut held: HashMap<i64, Vec<HeldLease>> = HashMap::new();
        for lease in leases {
            held.entry(lease.session_no).or_default().push(lease);
        }
        Ok((held, overdue.into_iter().map(|lease| ((lease.job, lease.token), lease.by)).collect()))
    }

    /// Takes back what the worker should know of and does not list, and what is overdue by the whole allowance; returns what
    /// it lists in vain, and what it should end itself before that.
    fn compare(
        &self,
        request: &Request,
        held: &[HeldLease],
        overdue: &HashMap<Listed, Duration>,
    ) -> (Vec<Listed>, Vec<Listed>) {
        let age = request.received.elapsed();
        // What is older was acknowledged, or never will be sent.
        let unsent = if request.quiet { self.timing.grant_ack } else { self.timing.claim_age };
        let mut lost = request.listed.clone();
        let mut late = Vec::new();
        for lease in held {
            let key = (lease.job, lease.token);
            let overdue = overdue.get(&key);
            if overdue.is_some_and(|by| *by >= self.timing.overdue) {
                // Stays among the lost if the worker lists it.
                self.take_back.overdue(request.owner, lease.job, lease.token);
            } else if !lost.remove(&key) {
                if lease.age > unsent + age && !request.awaited.contains(&key) {
                    self.take_back.undelivered(request.owner, lease.job, lease.token);
                }
            } else if overdue.is_some() {
                late.push(key);
            }
        }
        (lost.into_iter().collect(), late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_of_as_many_sessions_as_one_statement_renews_are_expected_at_the_same_moment() {
        let interval = Duration::from_secs(5);
        let pace = Pace { origin: Instant::now(), interval };
        let at = |millis| pace.origin + Duration::from_millis(millis);
        for session in 1..=100 {
            assert_eq!(pace.next(session, 1_000, at(5_100)), Duration::from_millis(4_900));
            assert_eq!(pace.next(session, 0, at(9_999)), Duration::from_millis(1));
            assert_eq!(pace.next(session, 100, at(10_000)), interval);
        }
        let moments = |sessions| {
            let next = (1..=100).map(|session| pace.next(session, sessions, at(0)));
            next.collect::<HashSet<_>>()
        };
        assert_eq!(moments(1_001), HashSet::from([interval, interval / 2]));
        assert_eq!(moments(5_000).len(), 5);
        assert!(moments(5_000).into_iter().all(|next| next <= interval));
    }
}
