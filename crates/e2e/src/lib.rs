//! What `cargo xtask e2e` runs: real processes, faults while they work, and a checker that judges the whole history.
//!
//! A `Scenario` builds a `World` (a database server, schedulers, workers, a reaper, and proxies for the network between them),
//! loads it, and injects its faults. Producers and handlers write down what they see, in files that the product knows nothing
//! of. When every fault is healed and nothing moves any more, the `checker` compares these histories with the database.

mod args;
mod bare;
mod checker;
mod clock;
mod disk;
mod history;
mod producer;
mod proxy;
mod report;
mod rest;
mod run;
mod scenarios;
mod worker;
mod world;

pub use args::Args;
pub use run::run;
pub use worker::{WorkerArgs, work};
