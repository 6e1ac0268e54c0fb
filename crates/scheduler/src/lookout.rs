//! Looking for what nobody told: the guarantee behind every hint, one statement each time.

use std::sync::Arc;

use queue_store::{Hint, Registry, Seen, Store, StoreError, look_out};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::ready::Ready;
use crate::timing::SLOW_POLL;
use crate::{batch, hints, promoter, stand_in};

/// Who is told what was seen.
pub struct Lookout {
    /// The database.
    pub store: Store,
    /// Names of queues and kinds.
    pub registry: Arc<Registry>,
    /// Is told of ready jobs and of lanes.
    pub ready: Ready,
    /// Is told when the next job is due.
    pub promoter: promoter::Handle,
    /// Is told when the last reaping pass was.
    pub stand_in: stand_in::Handle,
}

impl Lookout {
    /// Looks until told to stop.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        loop {
            if let Err(error) = self.store.within(self.look()).await {
                batch::complain("looking for what was not told", &error);
            }
            tokio::select! {
                () = sleep(SLOW_POLL) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
    }

    async fn look(&self) -> Result<(), StoreError> {
        let dispatcher = &self.ready.dispatcher;
        // However a lane came into the registry: one that the dispatcher has not heard of is looked into from now on.
        dispatcher.learn(&self.registry.lanes());
        let Seen { ready, registered, next_due, passed_ago } =
            look_out(&mut *self.store.hot().await?, &dispatcher.quiet_lanes()).await?;
        dispatcher.hint(&ready.into_iter().map(Hint::anywhere).collect::<Vec<_>>());
        if let Some(due) = next_due {
            self.promoter.due(Instant::now() + due);
        }
        self.stand_in.passed(passed_ago);
        let known = self.registry.size();
        if registered != known {
            hints::reload(&self.store, &self.registry).await?;
            // What waits in lanes that were not known is not known either.
            let fresh = self.registry.lanes().split_off(usize::try_from(known.lanes).unwrap_or_default());
            dispatcher.hint(&fresh.into_iter().map(Hint::anywhere).collect::<Vec<_>>());
        }
        Ok(())
    }
}
