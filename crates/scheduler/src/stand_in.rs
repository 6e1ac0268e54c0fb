//! Standing in for a reaper that was not heard of: decides when this scheduler makes the passes itself.

use std::time::Duration;

use queue_store::{StoreError, acquire_maintenance, passed_ago, release_maintenance};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::batch;
use crate::reaping::Reaping;

/// A reaper's period; it is missed after three of them.
const PERIOD: Duration = Duration::from_secs(5);

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
    reaping.pass(warden).await?;
    release_maintenance(&mut conn, warden).await?;
    Ok(true)
}
