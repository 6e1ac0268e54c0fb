//! What `cargo xtask bench` runs: scenarios that measure real processes, each beside its floor.
//!
//! A `Scenario` sets a `Stage`: a fresh database, schedulers and workers as processes of their
//! own. It loads them over gRPC, measures, and returns a sample. Its floor is the same transitions as plain batched SQL from
//! one client, measured just before.

mod args;
mod clock;
mod commits;
mod counters;
mod database;
mod fleet;
mod floor;
mod jobs;
mod latency;
mod load;
mod meter;
mod pace;
mod payload;
mod prefill;
mod program;
mod psql;
mod report;
mod rig;
mod run;
mod scenario;
mod scenarios;
mod sessions;
mod stage;
mod stats;
mod usage;
mod work;

pub use args::Args;
pub use run::run;
pub use work::{WorkerArgs, work};
