//! What a scenario is.

use futures::future::BoxFuture;

use crate::{counters::Counters, rig::Rig};

/// A figure, and how one run of it is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    /// What it is called, for ever.
    pub(crate) name: &'static str,
    /// What is measured, for people.
    pub(crate) about: &'static str,
    /// Where it belongs.
    pub(crate) group: Group,
    /// Unit of the figure and of its floor.
    pub(crate) unit: &'static str,
    /// Which way is up.
    pub(crate) better: Better,
    /// What the floor is, for people.
    pub(crate) floor: &'static str,
    /// Makes one run.
    pub(crate) run: for<'r> fn(&'r Rig) -> BoxFuture<'r, anyhow::Result<Sample>>,
}

/// Scenarios that are asked for together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// Figures of the whole system.
    Main,
    /// The drain again, in a system that holds much.
    Flat,
}

impl Group {
    /// As a flag says it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Flat => "flat",
        }
    }
}

/// Which way is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

impl Better {
    /// For the JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Higher => "higher",
            Self::Lower => "lower",
        }
    }
}

/// What one run came to.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// The figure.
    pub(crate) value: f64,
    /// Its floor in the same run, if it has one.
    pub(crate) floor: Option<f64>,
    /// What was counted beside it.
    pub(crate) counters: Counters,
}
