//! Telling whoever may want to know that lanes got ready jobs: the dispatcher here, and other schedulers.

use queue_store::{Hint, Lane};

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
    pub fn tell(&self, hints: impl IntoIterator<Item = Hint>) {
        let mut hints: Vec<Hint> = hints.into_iter().collect();
        // The lowest of each lane comes first, and says it for the others.
        hints.sort_unstable();
        hints.dedup_by_key(|hint| hint.lane);
        self.dispatcher.hint(&hints);
        self.hints.tell(&hints);
    }

    /// The lowest position at which a lane may hold jobs.
    pub fn low(&self, lane: Lane) -> i64 {
        self.dispatcher.low(lane)
    }
}
