//! The loop, which only waits.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use client::{Client, ConnectOptions};
use lifecycle::Shutdown;
use telemetry::LogLimit;
use tokio::time::{Instant, sleep, timeout};

use crate::metrics::Metrics;
use crate::{ReaperArgs, Report, State, run_once};

/// How long the page under way may take, and then giving the lease back, once the process is told to stop.
pub const DRAIN_BOUND: Duration = Duration::from_secs(10);

/// Part of the period by which it varies, so that reapers and schedulers do not fall into step.
const JITTER: f64 = 0.2;

/// Periods without a success after which the process is no longer ready.
const READY_PERIODS: u32 = 3;

/// Runs passes until shutdown, or one with `--once`; gives the maintenance lease back at the end.
pub async fn patrol(args: ReaperArgs, shutdown: Shutdown) -> anyhow::Result<()> {
    let state = State::new(args.options()?);
    let options = ConnectOptions { call_timeout: args.call_timeout, ..args.connect.options()? };
    let client = Client::lazy(&options).context("connect to --scheduler")?;
    let mut patrol = Patrol {
        period: args.period,
        options,
        client,
        state,
        shutdown,
        metrics: Metrics::new(),
        limit: LogLimit::per_second(),
        standby: None,
    };
    if args.once { patrol.once().await } else { patrol.run().await }
}

struct Patrol {
    period: Duration,
    options: ConnectOptions,
    client: Client,
    state: State,
    shutdown: Shutdown,
    metrics: Metrics,
    limit: LogLimit,
    // Unknown until the first answer.
    standby: Option<bool>,
}

impl Patrol {
    async fn run(&mut self) -> anyhow::Result<()> {
        let soft = self.shutdown.soft().clone();
        while !soft.is_cancelled() {
            if let Some(report) = self.pass().await {
                self.conclude(&report)?;
            }
            tokio::select! {
                () = sleep(pause(self.period, rand::random())) => {}
                () = soft.cancelled() => {}
            }
        }
        self.release().await;
        Ok(())
    }

    async fn once(&mut self) -> anyhow::Result<()> {
        let report = self.pass().await;
        self.release().await;
        let Some(report) = report else { bail!("the pass was abandoned") };
        report.log();
        if let Some(failure) = report.failures.first() {
            bail!("the pass failed: {failure}");
        }
        ensure!(!report.violated(), "invariants of the storage are violated");
        Ok(())
    }

    /// One pass; none if it was abandoned because it did not end in time after the process was told to stop.
    async fn pass(&mut self) -> Option<Report> {
        let stop = self.shutdown.soft().clone();
        let too_late = async {
            stop.cancelled().await;
            sleep(DRAIN_BOUND).await;
        };
        tokio::select! {
            report = run_once(&self.client, &mut self.state, &stop) => Some(report),
            () = too_late => None,
            () = self.shutdown.hard().cancelled() => None,
        }
    }

    fn conclude(&mut self, report: &Report) -> anyhow::Result<()> {
        self.metrics.record(report);
        report.log();
        if report.succeeded() {
            telemetry::readiness().ready_for(Instant::now(), self.period * READY_PERIODS);
            self.tell_role(report);
        } else {
            self.tell_failure(report);
            self.move_on()?;
        }
        Ok(())
    }

    fn tell_role(&mut self, report: &Report) {
        if self.standby == Some(report.standby) {
            return;
        }
        self.standby = Some(report.standby);
        if report.standby {
            tracing::info!(holder = report.holder, "standing by: another reaper acts");
            return;
        }
        tracing::info!(holder = report.holder, "acting: this reaper holds the maintenance lease");
        if let Some(held) = self.state.held.filter(|held| held.ttl < self.period * 2) {
            tracing::warn!(ttl = ?held.ttl, period = ?self.period, "the maintenance lease is shorter than two periods");
        }
    }

    fn tell_failure(&self, report: &Report) {
        let Some(suppressed) = self.limit.allow("pass", Instant::now()) else { return };
        let failures = report.failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        tracing::warn!(error = failures, suppressed, "pass failed, the next one asks another scheduler");
    }

    /// Asks the next address from now on. A new connection also resolves names anew.
    fn move_on(&mut self) -> anyhow::Result<()> {
        self.options.addresses.rotate_left(1);
        self.client = Client::lazy(&self.options).context("connect to --scheduler")?;
        Ok(())
    }

    /// Lets another reaper act now instead of after the end of the lease. Its failure costs only that wait.
    async fn release(&mut self) {
        let Some(held) = self.state.held.take() else { return };
        tokio::select! {
            released = timeout(DRAIN_BOUND, self.client.release_maintenance(held.token)) => match released {
                Ok(Ok(())) => tracing::info!("gave the maintenance lease back"),
                Ok(Err(error)) => tracing::warn!(%error, "could not give the maintenance lease back"),
                Err(_) => tracing::warn!(bound = ?DRAIN_BOUND, "could not give the maintenance lease back in time"),
            },
            () = self.shutdown.hard().cancelled() => {}
        }
    }
}

/// The time until the next pass; `chance` is uniform in 0..1.
fn pause(period: Duration, chance: f64) -> Duration {
    period.mul_f64(1.0 - JITTER + 2.0 * JITTER * chance.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_varies_by_a_fifth_around_the_period() {
        let period = Duration::from_secs(5);
        assert_eq!(pause(period, 0.0), Duration::from_secs(4));
        assert_eq!(pause(period, 0.5), period);
        assert_eq!(pause(period, 1.0), Duration::from_secs(6));
    }
}
