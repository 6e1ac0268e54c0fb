//! A model of the lease protocol: sessions, grants, acknowledgements, renewals, expiry, settlement, streams that break,
//! processes that crash. [`Protocol`] is explored exhaustively for small bounds; its properties are the invariants that
//! ARCHITECTURE.md states.
//!
//! One job and two workers are enough for two to want it; two schedulers are enough for a session to change hands. Time is a
//! small number. A message may take any time and may be lost with its stream; within a stream and a direction order holds.
//!
//! Each condition that the product's statements and the worker check can be left out ([`Gap`]), and then a property fails: that
//! is how the model is known to look.

mod actions;
mod properties;
mod state;

pub use actions::Action;
pub use state::{Bounds, Gap, Protocol, State};
