//! All scenarios, one file each.

use crate::scenario::Scenario;

mod bulk;
mod drain;
mod steady;
mod unary;

/// In the order in which they are run.
pub(crate) const ALL: &[Scenario] = &[drain::SCENARIO, steady::SCENARIO, bulk::SCENARIO, unary::SCENARIO];
