//! How each job ended.

use std::time::Duration;

use anyhow::Context as _;
use client::{Client, v1};
use queue_core::JobId;
use tokio::task::JoinSet;

/// Jobs that are asked for at a time.
const PARALLEL: usize = 16;

/// What the demonstration needs of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Whether it succeeded.
    pub(crate) succeeded: bool,
    /// Its committed effect.
    pub(crate) effect: Option<Vec<u8>>,
    /// Leases of it that a worker took up.
    pub(crate) attempts: usize,
    /// Leases of it that were lost.
    pub(crate) lease_losses: u32,
    /// From its enqueue to its end, by the database's clock.
    pub(crate) latency: Option<Duration>,
    /// Why it is dead, or what its last failed attempt said.
    pub(crate) trouble: String,
}

/// Asks for all jobs; the outcomes are in their order.
pub(crate) async fn fetch(client: &Client, ids: &[JobId]) -> anyhow::Result<Vec<Outcome>> {
    let mut outcomes = vec![Outcome::default(); ids.len()];
    let mut asking = JoinSet::new();
    for (index, id) in ids.iter().copied().enumerate() {
        if asking.len() == PARALLEL {
            store(&mut outcomes, &mut asking).await?;
        }
        let client = client.clone();
        asking.spawn(async move { (index, client.job(id).await) });
    }
    while !asking.is_empty() {
        store(&mut outcomes, &mut asking).await?;
    }
    Ok(outcomes)
}

type Answer = (usize, Result<v1::Job, client::Error>);

async fn store(outcomes: &mut [Outcome], asking: &mut JoinSet<Answer>) -> anyhow::Result<()> {
    if let Some(answer) = asking.join_next().await {
        let (index, job) = answer.context("wait for an answer")?;
        outcomes[index] = Outcome::of(job.context("ask for a job")?);
    }
    Ok(())
}

impl Outcome {
    fn of(job: v1::Job) -> Self {
        let micros = |seconds: i64, nanos: i32| i128::from(seconds) * 1_000_000 + i128::from(nanos) / 1_000;
        let enqueued = job.enqueued_at.as_ref().map(|at| micros(at.seconds, at.nanos));
        let finished = job.finished_at.as_ref().map(|at| micros(at.seconds, at.nanos));
        let took = enqueued.zip(finished).and_then(|(from, to)| u64::try_from(to - from).ok());
        let failed = job.attempts.iter().rev().find(|attempt| !attempt.error.is_empty());
        let trouble = if job.dead_reason.is_empty() { failed.map(|attempt| attempt.error.clone()) } else { None };
        Self {
            succeeded: job.state() == v1::JobState::Succeeded,
            latency: took.map(Duration::from_micros),
            attempts: job.attempts.iter().filter(|attempt| attempt.end() != v1::AttemptEnd::Undelivered).count(),
            lease_losses: job.lease_losses,
            trouble: trouble.unwrap_or(job.dead_reason),
            effect: job.effect.map(Vec::from),
        }
    }
}
