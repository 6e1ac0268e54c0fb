//! The queue with a durable source of truth.

mod delivery;
mod truth;

pub use truth::waits;
