//! What was counted beside a figure.

use std::collections::{BTreeMap, BTreeSet};

use crate::stats::median;

/// Values by name. A name ends in its unit and is the same for ever.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Counters(BTreeMap<String, f64>);

impl Counters {
    /// Sets a value.
    pub(crate) fn set(&mut self, name: impl Into<String>, value: f64) {
        self.0.insert(name.into(), value);
    }

    /// A value.
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    /// All, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// The medians of several runs' values.
    pub(crate) fn medians(runs: &[&Self]) -> Self {
        let names: BTreeSet<&String> = runs.iter().flat_map(|run| run.0.keys()).collect();
        let of = |name: &String| runs.iter().filter_map(|run| run.get(name)).collect::<Vec<_>>();
        Self(names.into_iter().map(|name| (name.clone(), median(&of(name)))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_taken_by_name_over_the_runs_that_have_it() {
        let run = |pairs: &[(&str, f64)]| {
            let mut counters = Counters::default();
            for (name, value) in pairs {
                counters.set(*name, *value);
            }
            counters
        };
        let runs = [run(&[("a", 1.0)]), run(&[("a", 3.0), ("b", 5.0)]), run(&[("a", 2.0)])];
        let medians = Counters::medians(&runs.iter().collect::<Vec<_>>());
        assert_eq!(medians, run(&[("a", 2.0), ("b", 5.0)]));
    }
}
