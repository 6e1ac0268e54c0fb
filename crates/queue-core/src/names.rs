//! Names of queues, kinds and workers.

use std::fmt;
use std::sync::Arc;

use crate::{Invalid, MAX_NAME_CHARS};

fn checked(field: &str, name: &str) -> Result<Arc<str>, Invalid> {
    if name.is_empty() {
        return Err(Invalid::new(field, "is required"));
    }
    if name.len() > MAX_NAME_CHARS {
        return Err(Invalid::new(field, format!("has more than {MAX_NAME_CHARS} characters")));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_.:/-".contains(c);
    if let Some(bad) = name.chars().find(|&c| !allowed(c)) {
        return Err(Invalid::new(field, format!("has the character {bad:?}; allowed are a-z A-Z 0-9 _ . : / -")));
    }
    Ok(name.into())
}

/// Name of a queue: 1 to 128 characters out of `a-z A-Z 0-9 _ . : / -`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueName(Arc<str>);

/// Name of a kind of job, which selects its handler. Same rules as a queue's.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KindName(Arc<str>);

/// Name of a worker, for people. Same rules as a queue's.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerName(Arc<str>);

impl QueueName {
    /// Checks a queue's name; the field of the error is `queue`.
    pub fn new(name: &str) -> Result<Self, Invalid> {
        checked("queue", name).map(Self)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl KindName {
    /// Checks a kind's name; the field of the error is `kind`.
    pub fn new(name: &str) -> Result<Self, Invalid> {
        checked("kind", name).map(Self)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl WorkerName {
    /// Checks a worker's name; the field of the error is `worker_name`.
    pub fn new(name: &str) -> Result<Self, Invalid> {
        checked("worker_name", name).map(Self)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for KindName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for WorkerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
