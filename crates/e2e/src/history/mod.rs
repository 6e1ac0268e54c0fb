//! What happened, as those wrote it down who were there.
//!
//! Producers, handlers and the injector of faults append to files that the product knows nothing of. Times are those of the
//! machine's monotonic clock, which is the same for all processes and steps for none.

mod log;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub(crate) use log::{Log, load};

/// One line of a history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Nanoseconds since the start of the machine.
    pub(crate) at: u64,
    /// Who wrote it.
    pub(crate) by: String,
    /// What happened.
    #[serde(flatten)]
    pub(crate) event: Event,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// A job is about to be enqueued.
    Enqueueing {
        /// Its idempotency key.
        key: String,
    },
    /// Its enqueue was acknowledged.
    Acknowledged {
        /// Its idempotency key.
        key: String,
        /// Its identity.
        job: i64,
        /// Whether a job with this key was there.
        duplicate: bool,
    },
    /// Its enqueue was given up: it may be stored or not.
    GivenUp {
        /// Its idempotency key.
        key: String,
        /// The last answer.
        reason: String,
    },
    /// A worker begins.
    Opened {
        /// Jobs that it runs at once, at most.
        slots: usize,
    },
    /// A handler is about to start.
    Started(Attempt),
    /// A handler is about to return, or is dropped.
    Ended {
        /// The attempt.
        #[serde(flatten)]
        attempt: Attempt,
        /// How.
        how: How,
    },
    /// A fault begins.
    Fault {
        /// Which.
        what: String,
    },
    /// A fault is over: the system must recover from here on.
    Healed {
        /// Which.
        what: String,
    },
}

/// One attempt, as its handler sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attempt {
    /// The job.
    pub(crate) job: i64,
    /// Its fencing token.
    pub(crate) token: i64,
    /// Its number.
    pub(crate) number: u32,
}

/// How a handler ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    /// Done.
    Succeeded,
    /// Not done; may be tried again.
    Failed,
    /// It was told to stop and did.
    Stopped,
    /// It was told to stop, did not, and was dropped.
    Dropped,
}

impl Event {
    /// The job it is about, if it is about one.
    pub(crate) fn job(&self) -> Option<i64> {
        match self {
            Self::Acknowledged { job, .. } => Some(*job),
            Self::Started(attempt) | Self::Ended { attempt, .. } => Some(attempt.job),
            _ => None,
        }
    }
}

/// All that was written down, in the order of its times.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    /// The lines.
    pub(crate) entries: Vec<Entry>,
}

impl History {
    /// Brings lines of several files together.
    pub(crate) fn of(mut entries: Vec<Entry>) -> Self {
        // Stable: of one file's lines with one time the order is that of the file.
        entries.sort_by_key(|entry| entry.at);
        Self { entries }
    }

    /// Acknowledged keys with their jobs, each as often as it was acknowledged.
    pub(crate) fn acknowledged(&self) -> impl Iterator<Item = (&str, i64)> {
        self.entries.iter().filter_map(|entry| match &entry.event {
            Event::Acknowledged { key, job, .. } => Some((key.as_str(), *job)),
            _ => None,
        })
    }

    /// Starts of handlers, with their times.
    pub(crate) fn starts(&self) -> impl Iterator<Item = (u64, Attempt)> {
        self.entries.iter().filter_map(|entry| match entry.event {
            Event::Started(attempt) => Some((entry.at, attempt)),
            _ => None,
        })
    }

    /// How handlers ended, by job and token.
    pub(crate) fn ends(&self) -> BTreeMap<(i64, i64), How> {
        let ends = self.entries.iter().filter_map(|entry| match entry.event {
            Event::Ended { attempt, how } => Some(((attempt.job, attempt.token), how)),
            _ => None,
        });
        ends.collect()
    }

    /// Faults that began, by kind.
    pub(crate) fn faults(&self) -> BTreeMap<&str, u64> {
        let mut faults = BTreeMap::new();
        for entry in &self.entries {
            if let Event::Fault { what } = &entry.event {
                *faults.entry(what.as_str()).or_default() += 1;
            }
        }
        faults
    }

    /// The lines about one job, and the faults, as text.
    pub(crate) fn about(&self, job: i64) -> String {
        let about = self.entries.iter().filter(|entry| match &entry.event {
            Event::Fault { .. } | Event::Healed { .. } => true,
            event => event.job() == Some(job),
        });
        let first = self.entries.first().map_or(0, |entry| entry.at);
        let line = |entry: &Entry| {
            let seconds = std::time::Duration::from_nanos(entry.at - first).as_secs_f64();
            format!("  {seconds:>10.4} s  {:<12} {:?}\n", entry.by, entry.event)
        };
        about.map(line).collect()
    }
}
