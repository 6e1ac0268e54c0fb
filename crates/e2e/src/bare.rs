//! A worker that says what a scenario wants it to say, and nothing else. What it starts and ends is written down as by any other.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use client::{ConnectOptions, v1};
use tokio::{sync::mpsc, time::timeout};
use tonic::Streaming;
use v1::{settlement::Outcome, work_request::Message as Request, work_response::Message as Response};

use crate::{
    history::{Attempt, Event, How, Log},
    worker::{KIND, QUEUE},
};

/// Messages that wait for the transport.
const OUTBOUND: usize = 1_024;

/// Largest message that it accepts.
const MAX_MESSAGE: usize = 8 << 20;

/// For whatever the scheduler is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// One stream of one session.
pub(crate) struct Bare {
    requests: mpsc::Sender<v1::WorkRequest>,
    responses: Streaming<v1::WorkResponse>,
    log: Log,
    credit: u64,
}

/// A greeting of a new session.
pub(crate) fn hello(name: &str, capacity: u32) -> v1::Hello {
    v1::Hello {
        worker_name: name.to_owned(),
        session_id: rand::random::<[u8; 16]>().to_vec().into(),
        queues: vec![QUEUE.to_owned()],
        kinds: vec![KIND.to_owned()],
        capacity,
        ..v1::Hello::default()
    }
}

impl Bare {
    /// Opens a stream to the scheduler at a URL and waits for its welcome.
    pub(crate) async fn open(url: &str, hello: v1::Hello, log: Log) -> anyhow::Result<Self> {
        log.write(Event::Opened { slots: hello.capacity as usize });
        let addresses = ConnectOptions::new([url]).work_addresses().context("read the scheduler's address")?;
        let connection = addresses[0].connect().await.context("connect a bare worker")?;
        let (requests, receiver) = mpsc::channel(OUTBOUND);
        let first = v1::WorkRequest { message: Some(Request::Hello(hello)) };
        requests.try_send(first).context("say hello")?;
        let responses =
            timeout(PATIENCE, connection.work_stream(receiver, MAX_MESSAGE)).await?.context("open a stream")?;
        let mut bare = Self { requests, responses, log, credit: 0 };
        match bare.hear().await? {
            Response::Welcome(_) => Ok(bare),
            other => bail!("the first answer is {other:?}"),
        }
    }

    /// Says something. A stream that has ended takes nothing more, which shows when it is read.
    pub(crate) async fn say(&self, message: Request) {
        let _ = self.requests.send(v1::WorkRequest { message: Some(message) }).await;
    }

    /// The next message; an error if the stream has ended or nothing is said.
    pub(crate) async fn hear(&mut self) -> anyhow::Result<Response> {
        loop {
            let heard = timeout(PATIENCE, self.responses.message()).await.context("wait for the scheduler")??;
            if let Some(message) = heard.context("the stream has ended")?.message {
                return Ok(message);
            }
        }
    }

    /// Takes so many jobs, one after the other is acknowledged and begun.
    pub(crate) async fn take(&mut self, jobs: usize) -> anyhow::Result<Vec<Attempt>> {
        self.credit += jobs as u64;
        self.say(Request::Credit(v1::Credit { total: self.credit })).await;
        let mut taken = Vec::with_capacity(jobs);
        while taken.len() < jobs {
            let Response::Grants(grants) = self.hear().await? else { continue };
            let leases = grants.grants.iter().map(|grant| v1::LeaseRef { job_id: grant.job_id, token: grant.token });
            self.say(Request::LeaseAck(v1::LeaseAck { leases: leases.collect() })).await;
            for grant in grants.grants {
                let attempt = Attempt { job: grant.job_id, token: grant.token, number: grant.attempt };
                self.log.write(Event::Started(attempt));
                taken.push(attempt);
            }
        }
        ensure!(taken.len() == jobs, "{} jobs were granted to a worker with room for {jobs}", taken.len());
        Ok(taken)
    }

    /// Renews the session with these leases; an error if one of them is lost.
    pub(crate) async fn beat(&mut self, sequence: u64, held: &[Attempt]) -> anyhow::Result<()> {
        let lease = |attempt: &Attempt| v1::HeldLease { job_id: attempt.job, token: attempt.token, progress: None };
        let leases = held.iter().map(lease).collect();
        self.say(Request::Heartbeat(v1::Heartbeat { sequence, leases })).await;
        loop {
            match self.hear().await? {
                Response::Renewed(renewed) if renewed.sequence == sequence => {
                    ensure!(renewed.lost.is_empty(), "lost with the first heartbeat: {:?}", renewed.lost);
                    return Ok(());
                }
                _ => {}
            }
        }
    }

    /// Ends attempts well.
    pub(crate) async fn succeed(&self, attempts: &[Attempt]) {
        let settlements = attempts.iter().map(|&attempt| {
            self.log.write(Event::Ended { attempt, how: How::Succeeded });
            v1::Settlement { job_id: attempt.job, token: attempt.token, outcome: Some(succeeded(attempt.token)) }
        });
        let settlements = settlements.collect();
        self.say(Request::Settle(v1::Settle { settlements })).await;
    }

    /// Reads answers to so many settlements; fewer if the stream ends before.
    pub(crate) async fn verdicts(&mut self, count: usize) -> Vec<v1::SettleAck> {
        let mut verdicts = Vec::with_capacity(count);
        while verdicts.len() < count {
            match self.hear().await {
                Ok(Response::SettleAcks(acks)) => verdicts.extend(acks.acks),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        verdicts
    }
}

/// Done; the result and the effect are the token, so that it shows whose they are.
fn succeeded(token: i64) -> Outcome {
    let text = token.to_string();
    let (result, effect) = (Some(text.clone().into_bytes().into()), Some(text.into_bytes().into()));
    Outcome::Succeeded(v1::Succeeded { result, effect, ..v1::Succeeded::default() })
}
