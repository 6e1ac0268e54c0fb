//! Reaping pages, and making the passes of a reaper that was not heard of.

use std::time::Duration;

use queue_store::{
    Store, StoreError, Transaction, Warden, acquire_maintenance, expire_sessions, note_pass, passed_ago, reap_page,
    release_maintenance,
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::ready::Ready;
use crate::timing::Timing;
use crate::{batch, metrics};

/// A reaper's period; it is missed after three of them.
const PERIOD: Duration = Duration::from_secs(5);
/// Sessions and leases of one page.
const PAGE: i64 = 500;

/// What reaping needs, here and in the reaper's service.
#[derive(Clone)]
pub struct Reaping {
    /// The database.
    pub store: Store,
    /// Is told what is ready again.
    pub ready: Ready,
    /// Intervals.
    pub timing: Timing,
}

impl Reaping {
    /// Reaps one page. `None`: the warden has lost its lease.
    pub async fn page(&self, warden: Warden, limit: i64) -> Result<Option<(usize, usize)>, StoreError> {
        let mut conn = self.store.vital().await?;
        let mut tx = Transaction::begin(&mut conn).await?;
        let Some(reaped) = reap_page(tx.conn(), warden, limit, &|lane| self.ready.low(lane)).await? else {
            return Ok(None);
        };
        tx.commit().await?;
        if reaped.leases > 0 {
            tracing::info!(leases = reaped.leases, dead = reaped.dead, "leases of dead sessions taken back");
        }
        metrics::lost(reaped.leases, reaped.dead);
        self.ready.tell(reaped.lanes);
        Ok(Some((reaped.leases, reaped.dead)))
    }
}

/// Stands in for the reaper until told to stop.
pub async fn run(reaping: Reaping, name: String, stop: CancellationToken) -> anyhow::Result<()> {
    // Whether the last pass was made here: then the next one is due a period later, not three.
    let mut standing_in = false;
    loop {
        tokio::select! {
            () = sleep(PERIOD) => {}
            () = stop.cancelled() => return Ok(()),
        }
        let patience = if standing_in { PERIOD.mul_f64(0.9) } else { 3 * PERIOD };
        match reaping.store.within_long(run_once(&reaping, &name, patience)).await {
            Ok(passed) => standing_in = passed,
            Err(error) => batch::complain("a reaping pass", &error),
        }
    }
}

/// Makes a pass if none was made for so long. Returns whether it did.
async fn run_once(reaping: &Reaping, name: &str, patience: Duration) -> Result<bool, StoreError> {
    let mut conn = reaping.store.vital().await?;
    if passed_ago(&mut conn).await?.is_some_and(|ago| ago < patience) {
        return Ok(false);
    }
    let (Some(warden), _) = acquire_maintenance(&mut conn, name, None, 3 * PERIOD).await? else { return Ok(false) };
    tracing::debug!("no reaper was heard of: making a pass");
    expire_sessions(&mut conn, warden, PAGE, reaping.timing.ttl, reaping.timing.gap).await?;
    while let Some((leases, _)) = reaping.page(warden, PAGE).await? {
        if i64::try_from(leases).unwrap_or(PAGE) < PAGE {
            break;
        }
    }
    note_pass(&mut conn, warden).await?;
    release_maintenance(&mut conn, warden).await?;
    Ok(true)
}
