//! The independent safety net: has a scheduler take back what was abandoned.
//!
//! [`patrol()`] only waits; [`run_once`] does the work through the scheduler's maintenance calls, page by page. Two reapers
//! may run: the one that holds the maintenance lease acts, the other stands by and takes over when that lease ends.

mod args;
mod metrics;
mod pass;
mod patrol;
mod report;
mod state;

pub use args::ReaperArgs;
pub use pass::{LONG_STEP_BOUND, MAX_PAGES, run_once};
pub use patrol::{DRAIN_BOUND, patrol};
pub use report::{Failure, Report, Step, Tidied};
pub use state::{Held, Options, State};
