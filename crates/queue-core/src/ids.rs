//! Identities: numbers that the database gives out, and the session's own.

use std::fmt;
use std::num::NonZeroI64;

use crate::Invalid;

/// Identity of a job, given by the database: creation time in milliseconds, shard, sequence. Never reused, positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(NonZeroI64);

/// Fencing token of a lease: strictly increasing per job, never reused, positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(NonZeroI64);

/// Identity of one incarnation of a worker process: 16 random bytes, chosen by the worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub [u8; 16]);

fn positive(field: &str, value: i64) -> Result<NonZeroI64, Invalid> {
    NonZeroI64::new(value)
        .filter(|value| value.get() > 0)
        .ok_or_else(|| Invalid::new(field, format!("must be a positive number, is {value}")))
}

impl JobId {
    /// The number as it travels and is stored.
    pub fn get(self) -> i64 {
        self.0.get()
    }
}

impl Token {
    /// The number as it travels and is stored.
    pub fn get(self) -> i64 {
        self.0.get()
    }
}

impl TryFrom<i64> for JobId {
    type Error = Invalid;

    fn try_from(value: i64) -> Result<Self, Invalid> {
        positive("job_id", value).map(Self)
    }
}

impl TryFrom<i64> for Token {
    type Error = Invalid;

    fn try_from(value: i64) -> Result<Self, Invalid> {
        positive("token", value).map(Self)
    }
}

impl TryFrom<&[u8]> for SessionId {
    type Error = Invalid;

    fn try_from(bytes: &[u8]) -> Result<Self, Invalid> {
        let id: [u8; 16] = bytes
            .try_into()
            .map_err(|_| Invalid::new("session_id", format!("must be 16 random bytes, has {}", bytes.len())))?;
        if id == [0; 16] {
            return Err(Invalid::new("session_id", "must be 16 random bytes, is all zero"));
        }
        Ok(Self(id))
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for SessionId {
    /// The first four bytes in hexadecimal: enough to tell sessions apart in a log, too little to settle with.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
