//! Who enqueues, and does not give up while it is not known whether a job is stored.

use std::time::Duration;

use anyhow::Context as _;
use client::{Client, Enqueued, Error};
use futures::{StreamExt as _, stream};
use queue_core::NewJob;
use tokio::time::{Instant, sleep};

use crate::{
    history::{Event, Log},
    worker::Step,
    world::job,
};

/// Calls at once.
const CALLS: usize = 16;

/// A job that is not acknowledged by then is given up.
const PATIENCE: Duration = Duration::from_secs(40);

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(100);

/// Enqueues jobs and writes down what it was told.
#[derive(Clone)]
pub(crate) struct Producer {
    client: Client,
    log: Log,
    name: String,
}

impl Producer {
    /// Its name tells its keys from those of others.
    pub(crate) fn new(client: Client, log: Log, name: String) -> Self {
        Self { client, log, name }
    }

    /// Enqueues so many jobs, as fast as they are acknowledged; `step` and `set` make the job of each number.
    pub(crate) async fn enqueue(
        &self,
        jobs: u32,
        step: impl Fn(u32) -> Step,
        set: impl Fn(NewJob) -> NewJob,
    ) -> anyhow::Result<()> {
        let made = (0..jobs).map(|number| {
            let key = format!("{}/{number}", self.name);
            let job = set(job(step(number), &key)?);
            anyhow::Ok(async move { self.one(job, key).await })
        });
        let made: Vec<_> = made.collect::<Result<_, _>>()?;
        stream::iter(made).buffer_unordered(CALLS).collect::<Vec<()>>().await;
        Ok(())
    }

    /// Enqueues jobs at this rate for this long, whatever becomes of those before.
    pub(crate) async fn enqueue_paced(&self, rate: u32, time: Duration, step: Step) -> anyhow::Result<()> {
        let (began, mut calls) = (Instant::now(), tokio::task::JoinSet::new());
        let jobs = u32::try_from(u64::from(rate) * u64::try_from(time.as_millis())? / 1_000)?;
        for number in 0..jobs {
            sleep((began + Duration::from_secs(1) * number / rate).saturating_duration_since(Instant::now())).await;
            let key = format!("{}/{number}", self.name);
            let (job, producer) = (job(step, &key)?, self.clone());
            calls.spawn(async move { producer.one(job, key).await });
        }
        while let Some(called) = calls.join_next().await {
            called.context("wait for a call")?;
        }
        Ok(())
    }

    /// Enqueues one job until that is acknowledged: with a key a repeat does no harm.
    async fn one(&self, job: NewJob, key: String) {
        self.log.write(Event::Enqueueing { key: key.clone() });
        let began = Instant::now();
        loop {
            match self.client.enqueue(job.clone()).await {
                Ok(Enqueued { job_id, duplicate, .. }) => {
                    return self.log.write(Event::Acknowledged { key, job: job_id.get(), duplicate });
                }
                Err(error) if is_final(&error) || began.elapsed() > PATIENCE => {
                    return self.log.write(Event::GivenUp { key, reason: error.to_string() });
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    }
}

/// Whether asking again would bring the same answer.
fn is_final(error: &Error) -> bool {
    matches!(error, Error::Options(_) | Error::Invalid(_) | Error::Refused(_) | Error::Conflict(_))
}
