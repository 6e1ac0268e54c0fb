//! What runs came to, for people.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets::NOTHING};

use crate::{
    checker::State,
    history::{Event, History, How},
};

/// One run.
pub(crate) struct Row {
    /// The scenario.
    pub(crate) name: &'static str,
    /// What decided what chance decides.
    pub(crate) seed: u64,
    /// How long it took.
    pub(crate) took: Duration,
    /// What it came to, if it passed.
    pub(crate) figures: Option<Figures>,
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figures {
    /// Jobs that were acknowledged.
    pub(crate) jobs: usize,
    /// Handlers that were started.
    pub(crate) starts: usize,
    /// Attempts that were lost with their lease.
    pub(crate) lost: usize,
    /// Attempts that were given back.
    pub(crate) released: usize,
    /// Grants that did not arrive.
    pub(crate) undelivered: usize,
    /// Handlers that ended well and whose result counts for nothing, because somebody else had the job by then.
    pub(crate) superseded: usize,
    /// Faults.
    pub(crate) faults: u64,
    /// From the end of a fault to the next success: the longest.
    pub(crate) recovery: Duration,
}

impl Figures {
    /// Counts.
    pub(crate) fn of(history: &History, state: &State) -> Self {
        let ended = |how: &str| state.attempts.iter().filter(|attempt| attempt.how == how).count();
        let succeeded = history.ends().into_values().filter(|how| *how == How::Succeeded).count();
        Self {
            jobs: state.jobs.len(),
            starts: history.starts().count(),
            lost: ended("lost"),
            released: ended("released"),
            undelivered: ended("undelivered"),
            superseded: succeeded.saturating_sub(state.succeeded()),
            faults: history.faults().values().sum(),
            recovery: recoveries(history).into_iter().max().unwrap_or_default(),
        }
    }
}

/// From the end of each fault to the next success.
fn recoveries(history: &History) -> Vec<Duration> {
    let mut healed = None;
    let mut recoveries = Vec::new();
    for entry in &history.entries {
        match entry.event {
            Event::Healed { .. } => healed = healed.or(Some(entry.at)),
            Event::Fault { .. } => healed = None,
            Event::Ended { how: How::Succeeded, .. } => {
                recoveries.extend(healed.take().map(|healed| Duration::from_nanos(entry.at - healed)));
            }
            _ => {}
        }
    }
    recoveries
}

/// A line for each run.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header([
        "scenario",
        "seed",
        "result",
        "seconds",
        "jobs",
        "starts",
        "lost",
        "released",
        "undelivered",
        "superseded",
        "faults",
        "recovery",
    ]);
    for row in rows {
        let result = if row.figures.is_some() { "passed" } else { "FAILED" };
        let mut cells =
            vec![row.name.to_owned(), row.seed.to_string(), result.to_owned(), row.took.as_secs().to_string()];
        if let Some(figures) = &row.figures {
            let Figures { jobs, starts, lost, released, undelivered, superseded, .. } = *figures;
            cells.extend([jobs, starts, lost, released, undelivered, superseded].map(|count| count.to_string()));
            cells.extend([figures.faults.to_string(), format!("{:.1} s", figures.recovery.as_secs_f64())]);
        }
        table.add_row(cells);
    }
    for at in [1, 3, 4, 5, 6, 7, 8, 9, 10, 11] {
        if let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Attempt, Entry};

    #[test]
    fn recovery_is_counted_from_the_end_of_a_fault_to_the_next_success() {
        let attempt = Attempt { job: 1, token: 1, number: 1 };
        let (fault, healed) = (|| Event::Fault { what: "f".to_owned() }, || Event::Healed { what: "f".to_owned() });
        let success = || Event::Ended { attempt, how: How::Succeeded };
        let failure = || Event::Ended { attempt, how: How::Failed };
        let events =
            [(1, fault()), (2, success()), (3, healed()), (4, failure()), (7, success()), (8, success()), (9, fault())];
        let entry = |(at, event)| Entry { at, by: "x".to_owned(), event };
        let history = History::of(events.map(entry).to_vec());
        assert_eq!(recoveries(&history), [Duration::from_nanos(4)]);
    }
}
