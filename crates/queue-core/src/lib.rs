//! The domain of Fencepost: what a job is, what may happen to it, and every bound on it.
//!
//! Pure: no I/O, no clock, no runtime. Types here are valid by construction; whoever holds one need not check it again.
//!
//! ```text
//!                    enqueue (later)                enqueue (now)
//!                          │                              │
//!                          ▼         promote              ▼         claim
//!                    ┌───────────┐ ───────────►  ┌──────────────┐ ─────────►  ┌────────┐
//!                    │ scheduled │               │    ready     │             │ leased │
//!                    └───────────┘               └──────────────┘ ◄─────────  └────────┘
//!                          ▲                               released, lost,      │ │ │ │
//!                          │                               undelivered          │ │ │ │
//!                          └────────────────────────────────────────────────────┘ │ │ │
//!                             failed with attempts left, snoozed                  │ │ │
//!                                                                                 │ │ │
//!        ┌───────────┐  cancel (any open state)  ┌───────────┐   succeeded        │ │ │
//!        │ cancelled │                           │ succeeded │ ◄──────────────────┘ │ │
//!        └───────────┘                           └───────────┘                      │ │
//!                                                ┌───────────┐   budget used up,    │ │
//!                                                │   dead    │ ◄────────────────────┴─┘
//!                                                └───────────┘   failed for good
//! ```

mod ids;
mod invalid;
mod job;
mod limits;
mod names;
mod outcome;
mod retry;
mod state;
mod text;
mod verdict;

pub use ids::{JobId, SessionId, Token};
pub use invalid::Invalid;
pub use job::{Headers, IdempotencyKey, NewJob, Priority, Start, is_traceparent};
pub use limits::*;
pub use names::{KindName, QueueName, WorkerName};
pub use outcome::{Failure, Outcome, Success};
pub use retry::{RetryOverrides, RetryPolicy};
pub use state::{AttemptEnd, JobState};
pub use text::{checked_text, stored_text};
pub use verdict::{Counters, DeadReason, Next, after};
