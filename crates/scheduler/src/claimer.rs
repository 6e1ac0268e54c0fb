//! The loop that makes claims.

use queue_store::{Claim, Line, Store, StoreError, claim};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Writer;
use crate::timing::Timing;
use crate::{batch, dispatcher, hints, metrics, take_back};

/// Makes one claim after the other while slots are free and lanes may hold jobs, until told to stop.
pub async fn run(
    store: Store,
    dispatcher: dispatcher::Handle,
    hints: hints::Handle,
    take_back: take_back::Handle,
    timing: Timing,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut patience = batch::Patience::default();
    let mut line = store.hot_line();
    // A claim without an answer may still hold its rows locked for as long as a statement may take.
    let mut unanswered: Option<Instant> = None;
    while !stop.is_cancelled() {
        let Some(mut plan) = dispatcher.plan() else {
            tokio::select! {
                () = dispatcher.changed() => continue,
                () = stop.cancelled() => break,
            }
        };
        plan.request.alone = hints.is_alone() && unanswered.is_none_or(|at| at.elapsed() > timing.insert_lag);
        let began = Instant::now();
        match store.within(attempt(&mut line, &plan)).await {
            Ok(claim) => {
                metrics::committed(Writer::Claim, began);
                patience = batch::Patience::default();
                metrics::claimed(claim.jobs.len());
                for (job, owner) in dispatcher.granted(&plan, claim, began) {
                    take_back.undelivered(owner, job.job, job.token);
                }
            }
            Err(error) => {
                batch::complain("a claim", &error);
                // What an unanswered commit granted no worker lists in its heartbeats: they bring it back.
                dispatcher.failed(&plan);
                unanswered = Some(Instant::now());
                patience.wait().await;
            }
        }
    }
    Ok(())
}

async fn attempt(line: &mut Line, plan: &dispatcher::Plan) -> Result<Claim, StoreError> {
    let mut conn = line.take().await?;
    let claim = claim(&mut conn, &plan.request).await?;
    line.keep(conn);
    Ok(claim)
}
