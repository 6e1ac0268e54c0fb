//! One pass.

use std::time::Duration;

use client::{Client, Error};
use queue_core::Token;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::{Failure, Held, Report, State, Step, Tidied};

/// Pages of one step in one pass; what is left is the next pass's, after its renewal and with other steps in between.
pub const MAX_PAGES: u32 = 1_000;

/// Tidying or an audit in one pass, repeats included.
pub const LONG_STEP_BOUND: Duration = Duration::from_secs(30);

/// Does one pass: takes or renews the maintenance lease, then expires, reaps, and tidies and audits when that is due.
///
/// Stands by if another reaper holds the lease. A step that fails does not stop the others, unless they would fail for
/// the same reason. When `stop` fires, the page under way is finished and no other begun.
pub async fn run_once(client: &Client, state: &mut State, stop: &CancellationToken) -> Report {
    let started = Instant::now();
    let mut pass = Pass { client, state, stop, report: Report::default() };
    pass.run().await;
    pass.report.took = started.elapsed();
    pass.report
}

struct Pass<'a> {
    client: &'a Client,
    state: &'a mut State,
    stop: &'a CancellationToken,
    report: Report,
}

impl Pass<'_> {
    async fn run(&mut self) {
        match self.acquire().await {
            Ok(()) if self.report.standby => return,
            Ok(()) => {}
            Err(error) => return self.fail(Step::Acquire, error),
        }
        for step in [Step::Expire, Step::Reap, Step::Tidy, Step::Audit] {
            if self.stop.is_cancelled() {
                self.report.unfinished = true;
                return;
            }
            if let Err(error) = self.step(step).await {
                let over = ends_pass(&error);
                self.fail(step, error);
                if over {
                    return;
                }
            }
        }
    }

    fn fail(&mut self, step: Step, error: Error) {
        if matches!(error, Error::Stale(_)) {
            // Somebody else acts now. The next pass asks from the beginning.
            self.state.held = None;
        }
        self.report.failures.push(Failure { step, error });
    }

    async fn step(&mut self, step: Step) -> Result<(), Error> {
        let now = Instant::now();
        match step {
            Step::Acquire => self.acquire().await,
            Step::Expire => self.expire().await,
            Step::Reap => self.reap().await,
            Step::Tidy if self.state.tidy_is_due(now) => self.tidy().await,
            Step::Audit if self.state.audit_is_due(now) => self.audit().await,
            Step::Tidy | Step::Audit => Ok(()),
        }
    }

    async fn acquire(&mut self) -> Result<(), Error> {
        let asked = Instant::now();
        let token = self.state.held.map(|held| held.token);
        let answer = self.client.acquire_maintenance(&self.state.options.holder, token).await?;
        self.report.holder = answer.holder;
        self.report.standby = !answer.acquired;
        self.state.held = None;
        if answer.acquired {
            let ttl = answer.ttl.and_then(|ttl| Duration::try_from(ttl).ok()).unwrap_or_default();
            self.state.held = Some(Held { token: answer.token.try_into()?, asked, ttl });
        }
        Ok(())
    }

    /// The token, renewed when a third of the lease time is over: a long pass must not outlive its lease.
    async fn token(&mut self) -> Result<Token, Error> {
        let lost = || Error::Stale("another reaper took over".to_owned());
        let held = self.state.held.ok_or_else(lost)?;
        if !held.wants_renewal(Instant::now()) {
            return Ok(held.token);
        }
        self.acquire().await?;
        self.state.held.map(|held| held.token).ok_or_else(lost)
    }

    async fn expire(&mut self) -> Result<(), Error> {
        let size = self.state.options.sessions_page;
        for _ in 0..MAX_PAGES {
            let token = self.token().await?;
            let page = self.client.expire_sessions(token, Some(size)).await?;
            self.report.expired += u64::from(page.expired);
            self.report.held_back |= page.held_back;
            let lag = page.lag.and_then(|lag| Duration::try_from(lag).ok()).unwrap_or_default();
            self.report.lag = self.report.lag.max(lag);
            if page.expired < size {
                return Ok(());
            }
            if self.stop.is_cancelled() {
                break;
            }
        }
        self.report.unfinished = true;
        Ok(())
    }

    async fn reap(&mut self) -> Result<(), Error> {
        let size = self.state.options.leases_page;
        for _ in 0..MAX_PAGES {
            let token = self.token().await?;
            let page = self.client.reap_leases(token, Some(size)).await?;
            self.report.reaped += u64::from(page.reaped);
            self.report.retried += u64::from(page.retried);
            self.report.dead += u64::from(page.dead);
            if page.reaped < size {
                return Ok(());
            }
            if self.stop.is_cancelled() {
                break;
            }
        }
        self.report.unfinished = true;
        Ok(())
    }

    async fn tidy(&mut self) -> Result<(), Error> {
        let token = self.token().await?;
        self.state.tidied = Some(Instant::now());
        let done = bounded(self.client.tidy_storage(token)).await?;
        self.report.tidied = Some(Tidied {
            partitions_created: done.partitions_created,
            partitions_dropped: done.partitions_dropped,
            sessions_removed: done.sessions_removed,
            keys_removed: done.keys_removed,
        });
        Ok(())
    }

    async fn audit(&mut self) -> Result<(), Error> {
        let token = self.token().await?;
        self.state.audited = Some(Instant::now());
        self.report.violations = bounded(self.client.audit(token)).await?;
        if self.report.violations.is_none() {
            tracing::info!("audit skipped: there are too many jobs to look at");
        }
        Ok(())
    }
}

/// Tidying and audits read much; their repeats must not keep leases from being reaped for long.
async fn bounded<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = |_| Error::Unavailable(format!("no answer within {LONG_STEP_BOUND:?}"));
    timeout(LONG_STEP_BOUND, call).await.map_err(late)?
}

/// Whether the other steps would fail for the same reason.
fn ends_pass(error: &Error) -> bool {
    matches!(error, Error::Stale(_) | Error::Unavailable(_) | Error::Denied(_) | Error::Options(_))
}
