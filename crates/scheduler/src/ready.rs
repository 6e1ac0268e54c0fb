//! Telling whoever may want to know that lanes got ready jobs: the dispatcher here, and other schedulers.

use queue_store::Lane;

use crate::{dispatcher, hints};

/// Both ways of telling.
#[derive(Clone)]
pub struct Ready {
    /// Claims for the sessions of this scheduler.
    pub dispatcher: dispatcher::Handle,
    /// Reaches the other schedulers.
    pub hints: hints::Handle,
}

impl Ready {
    /// These lanes got jobs, and that is committed.
    pub fn tell(&self, lanes: impl IntoIterator<Item = Lane>) {
        let mut lanes: Vec<Lane> = lanes.into_iter().collect();
        lanes.sort_unstable();
        lanes.dedup();
        self.dispatcher.hint(&lanes);
        self.hints.tell(&lanes);
    }

    /// The lowest position at which a lane may hold jobs.
    pub fn low(&self, lane: Lane) -> i64 {
        self.dispatcher.low(lane)
    }
}
