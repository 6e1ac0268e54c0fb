//! Standing in for a reaper that was not heard of: decides when this scheduler makes the passes itself.

use std::time::Duration;

use queue_store::{StoreError, acquire_maintenance};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::batch;
use crate::reaping::Reaping;

/// A reaper's period; it is missed after three of them.
const PERIOD: Duration = Duration::from_secs(5);

/// The way to the loop.
#[derive(Clone)]
pub struct Handle(watch::Sender<Option<Duration>>);

impl Handle {
    /// Prepares the loop; the returned task must be run.
    pub fn new(
        reaping: Reaping,
        name: String,
        stop: CancellationToken,
    ) -> (Self, impl Future<Output = anyhow::Result<()>>) {
        let (sender, passed) = watch::channel(Some(Duration::ZERO));
        (Self(sender), run(reaping, name, passed, stop))
    }

    /// How long ago a pass ended, whoever made it; `None` if there was none.
    pub fn passed(&self, ago: Option<Duration>) {
        self.0.send_replace(ago);
    }
}

async fn run(
    reaping: Reaping,
    name: String,
    mut passed: watch::Receiver<Option<Duration>>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let start = Instant::now();
    // Whether the last pass was made here: then the next one is due a period later, not three.
    let mut standing_in = false;
    loop {
        tokio::select! {
            changed = passed.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
            }
            () = stop.cancelled() => return Ok(()),
        }
        // Where none was ever made, reapers get a moment to start as well.
        let ago = passed.borrow_and_update().unwrap_or_else(|| start.elapsed() + 2 * PERIOD);
        let patience = if standing_in { PERIOD.mul_f64(0.9) } else { 3 * PERIOD };
        if ago < patience {
            continue;
        }
        match reaping.store.within_long(run_once(&reaping, &name)).await {
            Ok(passed) => standing_in = passed,
            Err(error) => batch::complain("a reaping pass", &error),
        }
        // What was seen meanwhile is older than this pass.
        passed.mark_unchanged();
    }
}

/// Makes a pass if nobody else is about to. Returns whether it did.
async fn run_once(reaping: &Reaping, name: &str) -> Result<bool, StoreError> {
    let acquired = async { acquire_maintenance(&mut *reaping.store.vital().await?, name, None, 3 * PERIOD).await };
    let (Some(warden), _) = acquired.await? else { return Ok(false) };
    tracing::debug!("no reaper was heard of: making a pass");
    reaping.pass(warden).await?;
    Ok(true)
}
