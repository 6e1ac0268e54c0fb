//! Judges a whole run: what was written down while it happened, and what the database holds in the end.
//!
//! Shares no code with the product, and is itself tested with histories in which something is wrong.

mod rules;
mod state;

use std::fmt;

use crate::history::History;

pub(crate) use state::{Kind, State};

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    /// What is broken.
    pub(crate) rule: &'static str,
    /// The job, if it is about one.
    pub(crate) job: Option<i64>,
    /// How.
    pub(crate) text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.job {
            Some(job) => write!(f, "{}: job {job}: {}", self.rule, self.text),
            None => write!(f, "{}: {}", self.rule, self.text),
        }
    }
}

/// What is true in the end of a run besides what always is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Nothing moves any more: every acknowledged job has ended.
    AtRest,
    /// Jobs may still wait or run.
    Running,
}

/// All that is wrong.
pub(crate) fn check(history: &History, state: &State, end: End) -> Vec<Violation> {
    let mut found: Vec<Violation> = rules::ALL.iter().flat_map(|rule| rule(history, state)).collect();
    if end == End::AtRest {
        found.extend(rules::acknowledged_jobs_have_ended(history, state));
    }
    found
}

#[cfg(test)]
mod tests;
