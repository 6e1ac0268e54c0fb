//! One session's stream, from Welcome to its end.

use std::sync::Arc;
use std::time::Duration;

use queue_core::{Invalid, JobId, MAX_CAPACITY, Outcome, SessionId, Token, WorkerName};
use queue_proto::v1::work_request::Message as Request;
use queue_proto::v1::work_response::Message as Response;
use queue_proto::{lease_ref, millis, v1};
use queue_store::{Holder, Owner};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use crate::grants::{self, Claims, Unacknowledged};
use crate::handshake::listed;
use crate::lines::Lines;
use crate::renew_writer::Answer;
use crate::timing::{MAX_STREAM_AGE, PING_INTERVAL, SILENCE};
use crate::work_service::Parts;
use crate::{metrics, renew_writer, settle_writer, status};

/// Messages that wait for a slow reader.
pub const OUTBOUND: usize = 64;
/// A worker that seems silent gets so much longer: if this process was stopped meanwhile, what came is still to be read.
const LAST_CHANCE: Duration = Duration::from_millis(500);
static MUTE_LINES: Lines = Lines::new();
/// Settlements of one message: what a worker of the largest capacity can have to say.
const SETTLEMENTS_PER_MESSAGE: usize = MAX_CAPACITY as usize;

/// Why a stream ends. `Ok` means that the worker has nothing left to do with it.
type End = Result<(), Status>;

/// What is said to a worker. Boxed: a channel has room for many from its start, and there are many channels.
pub type Outbound = Box<Result<v1::WorkResponse, Status>>;

/// The stream of a session that has been welcomed.
pub struct SessionStream {
    /// What all streams share.
    pub parts: Arc<Parts>,
    /// Proves that this scheduler serves the session.
    pub owner: Owner,
    /// Identity of the session, for the log.
    pub id: SessionId,
    /// Name of the worker, for the log.
    pub worker: WorkerName,
    /// From the worker.
    pub inbound: Streaming<v1::WorkRequest>,
    /// To the worker.
    pub outbound: mpsc::Sender<Outbound>,
    /// From the dispatcher.
    pub grants: mpsc::Receiver<Claims>,
    /// Largest message the worker accepts.
    pub max_message_bytes: usize,
    /// Fires when the scheduler drains.
    pub drain: CancellationToken,
    /// Fires when the time for that is over.
    pub closed: CancellationToken,
}

/// What the loop keeps.
struct Running {
    stream: SessionStream,
    unacknowledged: Unacknowledged,
    /// Whether the worker acknowledges what it is granted; the dispatcher knows the same.
    trusted: bool,
    heartbeat: Option<(u64, oneshot::Receiver<Answer>)>,
    /// When the worker was last told anything.
    spoke: Instant,
    acks: mpsc::UnboundedReceiver<v1::SettleAck>,
    /// Bounded by the settlements under way, which are bounded by the writer's queue.
    ack_sender: mpsc::UnboundedSender<v1::SettleAck>,
}

impl SessionStream {
    /// Serves the stream until it ends, then takes back what was not sent.
    pub async fn run(self) {
        let parts = self.parts.clone();
        let owner = self.owner;
        let (ack_sender, acks) = mpsc::unbounded_channel();
        let mut running = Running {
            stream: self,
            unacknowledged: Unacknowledged::default(),
            trusted: false,
            heartbeat: None,
            spoke: Instant::now(),
            acks,
            ack_sender,
        };
        let end = running.serve().await;
        parts.dispatcher.leave(owner);
        let SessionStream { outbound, mut grants, .. } = running.stream;
        if let Err(status) = end {
            tracing::debug!(session.no = owner.session_no, code = ?status.code(), reason = status.message(), "stream ended");
            let _ = timeout(SILENCE, outbound.send(Box::new(Err(status)))).await;
        }
        // What was never sent goes back. What was sent stays: the worker may have started it and died. If it lives, its
        // next Hello tells; if not, the lease is lost with its session.
        while let Ok(claims) = grants.try_recv() {
            parts.take_back.unsent(owner, claims.jobs);
        }
    }
}

impl Running {
    // What happens once in the life of a stream is boxed: each of thousands has room for all that it awaits in place.
    async fn serve(&mut self) -> End {
        let age = MAX_STREAM_AGE.mul_f64(1.0 - rand::random::<f64>() / 4.0);
        let old = Instant::now() + age;
        let mut heard = Instant::now();
        // Set when nothing was heard for long: what came while this process was stopped is read first.
        let mut last_chance: Option<Instant> = None;
        let (drain, closed) = (self.stream.drain.clone(), self.stream.closed.clone());
        let mut draining = false;
        loop {
            let late = self.unacknowledged.next_deadline();
            tokio::select! {
                message = self.stream.inbound.message() => {
                    heard = Instant::now();
                    last_chance = None;
                    let Some(message) = message? else { return Ok(()) };
                    if self.receive(message).await? {
                        return Ok(());
                    }
                    // Soon due: said now, it needs no turn of its own.
                    if self.spoke + PING_INTERVAL / 2 < heard {
                        self.send(Response::Ping(v1::Ping {})).await?;
                    }
                }
                claims = self.stream.grants.recv() => match claims {
                    Some(claims) => self.grant(claims).await?,
                    None => return Err(Box::pin(self.stream.parts.unseated(self.stream.owner)).await),
                },
                answer = answered(&mut self.heartbeat) => self.renewed(answer).await?,
                Some(ack) = self.acks.recv() => self.acknowledge(ack).await?,
                () = sleep_until(self.spoke + PING_INTERVAL) => self.send(Response::Ping(v1::Ping {})).await?,
                () = sleep_until(last_chance.unwrap_or(heard + SILENCE)) => {
                    if last_chance.is_some() {
                        return Err(Status::unavailable("nothing was heard of the worker for 6 s"));
                    }
                    last_chance = Some(Instant::now() + LAST_CHANCE);
                }
                () = sleep_until(late.unwrap_or(old)), if late.is_some() => self.look_for_late(heard)?,
                () = sleep_until(old), if !draining => {
                    draining = true;
                    self.send_drain(Duration::ZERO).await?;
                }
                () = closed.cancelled() => return Err(Status::unavailable("the scheduler stops: connect to another one")),
                () = drain.cancelled(), if !draining => {
                    draining = true;
                    self.send_drain(Duration::from_millis(500).mul_f64(rand::random())).await?;
                }
            }
        }
    }

    /// Handles one message. True: the worker said goodbye.
    async fn receive(&mut self, message: v1::WorkRequest) -> Result<bool, Status> {
        let owner = self.stream.owner;
        match message.message {
            None | Some(Request::Ping(_)) => {}
            Some(Request::Hello(_)) => {
                return Err(Status::invalid_argument("hello: only the first message may be one"));
            }
            Some(Request::Credit(credit)) => self.stream.parts.dispatcher.credit(owner, credit.total),
            Some(Request::LeaseAck(ack)) => {
                for lease in ack.leases {
                    let (job, token) = lease
                        .try_into()
                        .map_err(|invalid: Invalid| status::invalid(&invalid.within("lease_ack.leases")))?;
                    self.arrived(job, token);
                }
            }
            Some(Request::Heartbeat(heartbeat)) => self.heartbeat(heartbeat)?,
            Some(Request::Settle(settle)) => self.settle(settle).await?,
            Some(Request::Draining(_)) => self.stream.parts.dispatcher.close(owner),
            Some(Request::Bye(_)) => {
                self.stream.parts.dispatcher.close(owner);
                Box::pin(self.stream.parts.close_session(owner)).await;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn heartbeat(&mut self, heartbeat: v1::Heartbeat) -> End {
        let leases = heartbeat.leases.into_iter().map(|lease| (lease.job_id, lease.token));
        let listed = listed("heartbeat.leases", leases).map_err(|invalid| status::invalid(&invalid))?;
        // What it lists has arrived, whatever became of its acknowledgement.
        for &(job, token) in &listed {
            self.arrived(job, token);
        }
        let (answer, answered) = oneshot::channel();
        self.heartbeat = Some((heartbeat.sequence, answered));
        let owner = self.stream.owner;
        let awaited = self.unacknowledged.all();
        // In this order: what is not under way any more is in the channel, or was taken out and sent.
        let quiet = self.stream.parts.dispatcher.is_quiet(owner) && self.stream.grants.is_empty();
        self.stream.parts.renewer.renew(renew_writer::Request {
            owner,
            listed,
            awaited,
            quiet,
            received: Instant::now(),
            answer,
        });
        Ok(())
    }

    async fn renewed(&mut self, answer: Option<(u64, Answer)>) -> End {
        // No answer: the database could not be reached. The worker notices that nothing is renewed.
        let Some((sequence, answer)) = answer else { return Ok(()) };
        match answer {
            Answer::Renewed { next, lost, overdue } => {
                let renewed = v1::Renewed {
                    sequence,
                    lease_ttl: Some(millis(self.stream.parts.timing.ttl)),
                    lost: lost.into_iter().map(lease_ref).collect(),
                    next_heartbeat: Some(millis(next)),
                };
                self.send(Response::Renewed(renewed)).await?;
                for lease in overdue {
                    let reason = "it runs past its timeout and is taken back soon".to_owned();
                    self.send(Response::Cancel(v1::Cancel { lease: Some(lease_ref(lease)), reason })).await?;
                }
                Ok(())
            }
            Answer::Superseded => Err(status::superseded()),
            Answer::Expired => Err(status::expired()),
        }
    }

    async fn settle(&mut self, settle: v1::Settle) -> End {
        if settle.settlements.len() > SETTLEMENTS_PER_MESSAGE {
            return Err(Status::invalid_argument(format!(
                "settle.settlements: has more than {SETTLEMENTS_PER_MESSAGE} entries"
            )));
        }
        for (at, settlement) in settle.settlements.into_iter().enumerate() {
            let field = |invalid: Invalid| status::invalid(&invalid.within(&format!("settle.settlements[{at}]")));
            let job = JobId::try_from(settlement.job_id).map_err(field)?;
            let token = Token::try_from(settlement.token).map_err(field)?;
            self.arrived(job, token);
            match self.outcome(settlement.outcome) {
                Ok(outcome) => {
                    let holder = Holder { job, token, session_no: self.stream.owner.session_no };
                    let request = settle_writer::Request { holder, outcome, answer: self.ack_sender.clone() };
                    if !self.stream.parts.settler.settle(request) {
                        return Err(Status::unavailable("the scheduler is overloaded; send the settlement again"));
                    }
                }
                Err(invalid) => self.reject(job, token, &invalid).await?,
            }
        }
        Ok(())
    }

    fn outcome(&self, outcome: Option<v1::settlement::Outcome>) -> Result<Outcome, Invalid> {
        let outcome = outcome.ok_or_else(|| Invalid::new("outcome", "is required"))?;
        let max = self.stream.parts.max_payload_bytes;
        let mut outcome = Outcome::try_from(outcome)?.checked(max)?;
        if let Outcome::Succeeded(success) = &mut outcome {
            let follow_ups = std::mem::take(&mut success.follow_ups).into_iter().enumerate();
            let checked = follow_ups.map(|(at, job)| {
                job.checked(max).map_err(|invalid| invalid.within(&format!("succeeded.follow_ups[{at}]")))
            });
            success.follow_ups = checked.collect::<Result<_, _>>()?;
        }
        Ok(outcome)
    }

    async fn reject(&mut self, job: JobId, token: Token, invalid: &Invalid) -> End {
        let mut ack = v1::SettleAck { job_id: job.get(), token: token.get(), ..v1::SettleAck::default() };
        ack.set_verdict(v1::SettleVerdict::Rejected);
        ack.reason = invalid.to_string();
        metrics::settled(ack.verdict(), 1);
        self.acknowledge(ack).await
    }

    /// Sends this answer and all others that are there already, in one message.
    async fn acknowledge(&mut self, first: v1::SettleAck) -> End {
        let mut acks = vec![first];
        while let Ok(ack) = self.acks.try_recv() {
            acks.push(ack);
        }
        self.send(Response::SettleAcks(v1::SettleAcks { acks })).await
    }

    async fn grant(&mut self, Claims { asked, jobs }: Claims) -> End {
        let parts = self.stream.parts.clone();
        let now = Instant::now();
        // As this process was stopped: a heartbeat may have found these leases, and not in the worker's list.
        if asked + parts.timing.claim_age < now {
            parts.take_back.unsent(self.stream.owner, jobs);
            return Ok(());
        }
        for job in &jobs {
            self.unacknowledged.add(job.job, job.token, now, parts.timing.grant_ack);
        }
        for message in grants::messages(jobs, &parts.registry, parts.timing.ttl, self.stream.max_message_bytes) {
            self.send(Response::Grants(message)).await?;
        }
        Ok(())
    }

    /// A grant has arrived. The first one opens the way for all credits.
    fn arrived(&mut self, job: JobId, token: Token) {
        if self.unacknowledged.remove(job, token) && !self.trusted {
            self.trusted = true;
            self.stream.parts.dispatcher.trust(self.stream.owner);
        }
    }

    /// Ends the stream if a grant was not acknowledged in time though the worker was heard of lately and since it was sent.
    ///
    /// The grant may still be on its way, for one direction can be slower than the other. Once the worker opens another
    /// stream, what was sent over this one cannot arrive any more: then its Hello tells what is to be taken back. Of a worker
    /// that is not heard of nothing is known: it may have started the job and died. Then the lease ends with its session.
    fn look_for_late(&mut self, heard: Instant) -> End {
        let now = Instant::now();
        let mut late = 0;
        for sent in self.unacknowledged.late(now) {
            late += usize::from(heard > sent.at && heard + PING_INTERVAL.mul_f64(1.5) > now);
            self.unacknowledged.postpone(sent, now, PING_INTERVAL / 8);
        }
        if late == 0 {
            return Ok(());
        }
        self.complain_of_silence(late, now);
        let bound = self.stream.parts.timing.grant_ack;
        Err(Status::deadline_exceeded(format!(
            "{late} grants were not acknowledged within {bound:?}: say hello again, and acknowledge grants before you run them"
        )))
    }

    fn complain_of_silence(&self, grants: usize, now: Instant) {
        let SessionStream { owner, id, worker, .. } = &self.stream;
        let line = |()| {
            tracing::warn!(
                session.id = %id,
                session.no = owner.session_no,
                worker = %worker,
                grants,
                "worker does not acknowledge its grants"
            );
        };
        let count = |workers| tracing::warn!(workers, "more workers do not acknowledge their grants");
        MUTE_LINES.tell(now, std::iter::once(()), line, count);
    }

    async fn send_drain(&mut self, reconnect_after: Duration) -> End {
        self.stream.parts.dispatcher.close(self.stream.owner);
        self.send(Response::Drain(v1::Drain { reconnect_after: Some(millis(reconnect_after)) })).await
    }

    /// A reader that takes nothing for so long is gone; it holds up only its own stream.
    async fn send(&mut self, message: Response) -> End {
        self.spoke = Instant::now();
        let message = v1::WorkResponse { message: Some(message) };
        match timeout(SILENCE, self.stream.outbound.send(Box::new(Ok(message)))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Status::unavailable("the worker has closed the stream")),
            Err(_) => Err(Status::unavailable("the worker reads nothing")),
        }
    }
}

/// The answer to the heartbeat under way; pending if there is none, `None` if the writer gave none.
async fn answered(heartbeat: &mut Option<(u64, oneshot::Receiver<Answer>)>) -> Option<(u64, Answer)> {
    let Some((sequence, receiver)) = heartbeat else { return std::future::pending().await };
    let sequence = *sequence;
    let answer = receiver.await.ok();
    *heartbeat = None;
    Some((sequence, answer?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<T, F: Future>(_: fn(T) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn task_of_a_stream_takes_little_memory_for_there_are_thousands() {
        let bytes = size_of_future(SessionStream::run);
        assert!(bytes <= 6 << 10, "the task of a stream takes {bytes} bytes");
    }
}
