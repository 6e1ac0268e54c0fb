//! All scenarios: a small file each, and what several share where they share it.

use crate::scenario::Scenario;

mod backlog;
mod bulk;
mod drain;
mod flat;
mod heartbeats;
mod idle;
mod latency;
mod sessions;
mod steady;
mod unary;

/// In the order in which they are run.
pub(crate) const ALL: &[Scenario] = &[
    drain::SCENARIO,
    steady::SCENARIO,
    bulk::SCENARIO,
    unary::SCENARIO,
    latency::IDLE,
    latency::HALF,
    heartbeats::SCENARIO,
    idle::SCENARIO,
    sessions::SCENARIO,
    backlog::SCENARIO,
    flat::READY,
    flat::FINISHED,
    flat::SCHEDULED,
    flat::DEAD,
    flat::UNKNOWN,
    flat::KEYS,
    flat::SNAPSHOT,
    flat::TWO_SCHEDULERS,
];
