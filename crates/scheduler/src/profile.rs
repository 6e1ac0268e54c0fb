//! Sessions that want the same: one list of lanes in their order, shared by all of them.

use std::collections::{BTreeMap, HashSet};

use queue_core::{KindName, QueueName};
use queue_store::{Lane, Registry};

/// What a worker listens to: queues in its order, kinds it has handlers for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Wants {
    /// The most important first.
    pub queues: Vec<QueueName>,
    /// Sorted.
    pub kinds: Vec<KindName>,
}

/// The lanes that fit, and the sessions that want them.
#[derive(Debug)]
pub struct Profile {
    kinds: HashSet<KindName>,
    queues: Vec<QueueName>,
    /// By rank of the queue in the worker's order, then by falling priority.
    tiers: BTreeMap<(usize, i16), Vec<Lane>>,
    /// Sessions, in the order in which they are served.
    pub sessions: Vec<i64>,
}

impl Profile {
    /// A profile without sessions.
    pub fn new(wants: &Wants) -> Self {
        Self {
            kinds: wants.kinds.iter().cloned().collect(),
            queues: wants.queues.clone(),
            tiers: BTreeMap::new(),
            sessions: Vec::new(),
        }
    }

    /// Takes note of a lane, if it fits.
    pub fn learn(&mut self, lane: Lane, registry: &Registry) {
        let (Some(queue), Some(kind)) = (registry.queue_name(lane.queue), registry.kind_name(lane.kind)) else {
            return;
        };
        let Some(rank) = self.queues.iter().position(|wanted| *wanted == queue) else { return };
        if self.kinds.contains(&kind) {
            self.add(rank, lane);
        }
    }

    fn add(&mut self, rank: usize, lane: Lane) {
        let tier = self.tiers.entry((rank, -lane.priority)).or_default();
        if !tier.contains(&lane) {
            tier.push(lane);
        }
    }

    /// The lanes to take from now: those of the first queue and highest priority that may hold jobs.
    pub fn first(&self, limit: usize, maybe: impl Fn(Lane) -> bool) -> Option<Vec<Lane>> {
        self.tiers.values().find_map(|tier| {
            let lanes: Vec<Lane> = tier.iter().copied().filter(|&lane| maybe(lane)).take(limit).collect();
            (!lanes.is_empty()).then_some(lanes)
        })
    }

    /// Whether a lane fits.
    pub fn wants(&self, lane: Lane) -> bool {
        self.lanes().any(|wanted| wanted == lane)
    }

    /// All lanes that fit.
    pub fn lanes(&self) -> impl Iterator<Item = Lane> + '_ {
        self.tiers.values().flatten().copied()
    }
}

#[cfg(test)]
impl Profile {
    /// Has a lane fit.
    pub fn fit(&mut self, lane: Lane) {
        self.add(0, lane);
    }
}
