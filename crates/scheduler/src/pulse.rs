//! The beat that tells the database, the health service and the probes that this scheduler lives.

use queue_store::{SchedulerId, Store, StoreError, beat};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic_health::server::HealthReporter;

use crate::timing::Timing;
use crate::{batch, hints};

/// Beats until told to stop.
pub async fn run(
    store: Store,
    scheduler: SchedulerId,
    timing: Timing,
    hints: hints::Handle,
    health: HealthReporter,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut tick = interval(timing.beat);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ready = None;
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = stop.cancelled() => return Ok(()),
        }
        let alive = match store.within(run_once(&store, scheduler, timing)).await {
            Ok(others) => {
                hints.set_alone(others == 0);
                telemetry::readiness().ready_for(Instant::now(), timing.gap);
                true
            }
            Err(error @ StoreError::Schema(_)) => return Err(error.into()),
            Err(error) => {
                batch::complain("the beat", &error);
                telemetry::readiness().not_ready("the database is not available");
                false
            }
        };
        if ready != Some(alive) {
            ready = Some(alive);
            announce(&health, alive).await;
        }
    }
}

async fn run_once(store: &Store, scheduler: SchedulerId, timing: Timing) -> Result<i64, StoreError> {
    beat(&mut *store.vital().await?, scheduler, timing.gap).await
}

/// Tells the health service. Draining is not serving.
pub async fn announce(health: &HealthReporter, serving: bool) {
    let status = if serving { tonic_health::ServingStatus::Serving } else { tonic_health::ServingStatus::NotServing };
    health.set_service_status("", status).await;
    for service in ["fencepost.v1.QueueService", "fencepost.v1.WorkService", "fencepost.v1.MaintenanceService"] {
        health.set_service_status(service, status).await;
    }
}
