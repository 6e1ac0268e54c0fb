//! A job to be enqueued, valid by construction.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::{
    Invalid, KindName, MAX_HEADER_BYTES, MAX_HEADERS, MAX_KEY_CHARS, MAX_NAME_CHARS, MAX_START_DELAY,
    MAX_TRACEPARENT_BYTES, MAX_WAIT, MIN_TIMEOUT, QueueName, RetryOverrides, checked_text,
};

/// 0 to 9; 9 is granted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(u8);

impl Priority {
    /// The number.
    pub fn get(self) -> u8 {
        self.0
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self(4)
    }
}

impl TryFrom<i32> for Priority {
    type Error = Invalid;

    fn try_from(value: i32) -> Result<Self, Invalid> {
        match u8::try_from(value) {
            Ok(priority @ 0..=9) => Ok(Self(priority)),
            _ => Err(Invalid::new("priority", format!("must be 0 to 9, is {value}"))),
        }
    }
}

/// When a job may first be granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// At once.
    #[default]
    Now,
    /// So long after the enqueue.
    After(Duration),
    /// At a time by the clock of the database, in microseconds since 1970. A past one means now.
    At(i64),
}

/// Names the logical request: the same key enqueued again is the same job. 1 to 256 characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdempotencyKey(Box<str>);

impl IdempotencyKey {
    /// Checks a key.
    pub fn new(key: &str) -> Result<Self, Invalid> {
        if key.is_empty() {
            return Err(Invalid::new("idempotency_key", "is empty; leave it out or give it 1 to 256 characters"));
        }
        checked_text("idempotency_key", key, MAX_KEY_CHARS)?;
        Ok(Self(key.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Headers of a job, handed to its handler as they are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// Checks headers: at most 64 and 16 KiB in all, names of 1 to 128 printable ASCII characters.
    pub fn new(headers: BTreeMap<String, String>) -> Result<Self, Invalid> {
        if headers.len() > MAX_HEADERS {
            return Err(Invalid::new("headers", format!("has more than {MAX_HEADERS} entries")));
        }
        if headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_HEADER_BYTES {
            return Err(Invalid::new("headers", format!("has more than {MAX_HEADER_BYTES} bytes in all")));
        }
        for (name, value) in &headers {
            if name.is_empty() || name.len() > MAX_NAME_CHARS || !name.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(Invalid::new(
                    "headers",
                    format!("has the name {name:?}; names are 1 to 128 printable ASCII characters"),
                ));
            }
            checked_text("headers", value, MAX_HEADER_BYTES)?;
        }
        Ok(Self(headers))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entries.
    pub fn entries(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// The entries, owned.
    pub fn into_entries(self) -> BTreeMap<String, String> {
        self.0
    }
}

/// A job to be enqueued.
///
/// ```
/// use queue_core::{KindName, NewJob, QueueName};
///
/// let job = NewJob::new(QueueName::new("mail")?, KindName::new("send_welcome")?, "{\"user\":7}")
///     .with_key("welcome-7")?;
/// # Ok::<(), queue_core::Invalid>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct NewJob {
    /// Queue that will hold it.
    pub queue: QueueName,
    /// Selects its handler.
    pub kind: KindName,
    /// Opaque input of the handler.
    pub payload: Bytes,
    /// Handed to the handler.
    pub headers: Headers,
    /// Makes a repeated enqueue the same job.
    pub key: Option<IdempotencyKey>,
    /// Order within its queue.
    pub priority: Priority,
    /// When it may first be granted.
    pub start: Start,
    /// What it sets of its retry policy.
    pub retry: RetryOverrides,
    /// Bound on one attempt's run time; none follows the queue.
    pub timeout: Option<Duration>,
    /// W3C trace context of the caller.
    pub traceparent: Option<String>,
}

impl NewJob {
    /// A job that runs now, with the defaults of its queue.
    pub fn new(queue: QueueName, kind: KindName, payload: impl Into<Bytes>) -> Self {
        Self {
            queue,
            kind,
            payload: payload.into(),
            headers: Headers::default(),
            key: None,
            priority: Priority::default(),
            start: Start::default(),
            retry: RetryOverrides::default(),
            timeout: None,
            traceparent: None,
        }
    }

    /// Sets the idempotency key.
    pub fn with_key(mut self, key: &str) -> Result<Self, Invalid> {
        self.key = Some(IdempotencyKey::new(key)?);
        Ok(self)
    }

    /// Refuses what the types of the fields do not exclude, naming the field.
    ///
    /// `max_payload_bytes` is the installation's bound.
    pub fn checked(self, max_payload_bytes: usize) -> Result<Self, Invalid> {
        if self.payload.len() > max_payload_bytes {
            let has = self.payload.len();
            return Err(Invalid::new("payload", format!("has {has} bytes, at most {max_payload_bytes} are allowed")));
        }
        if matches!(self.start, Start::After(delay) if delay > MAX_START_DELAY) {
            return Err(Invalid::new("delay", "must be at most 10 years"));
        }
        if let Some(timeout) = self.timeout
            && !(MIN_TIMEOUT..=MAX_WAIT).contains(&timeout)
        {
            return Err(Invalid::new("timeout", "must be 1 ms to 30 days"));
        }
        if self.traceparent.as_deref().is_some_and(|traceparent| !is_traceparent(traceparent)) {
            return Err(Invalid::new(
                "traceparent",
                "is not a W3C trace context, like 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            ));
        }
        self.retry.checked().map_err(|invalid| invalid.within("retry"))?;
        Ok(self)
    }
}

/// Whether `text` is a W3C traceparent: version, trace, span and flags in lower-case hexadecimal digits, neither trace
/// nor span all zeros (<https://www.w3.org/TR/trace-context/#traceparent-header>).
///
/// A later version may have more behind a fifth dash, up to [`MAX_TRACEPARENT_BYTES`].
pub fn is_traceparent(text: &str) -> bool {
    let is_hex =
        |part: &str, digits| part.len() == digits && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_id = |part: &str, digits| is_hex(part, digits) && part.bytes().any(|byte| byte != b'0');
    let mut parts = text.splitn(5, '-');
    let mut part = || parts.next().unwrap_or_default();
    let (version, trace, span, flags) = (part(), part(), part(), part());
    let rest_fits = match parts.next() {
        None => true,
        Some(rest) => version != "00" && rest.bytes().all(|byte| byte.is_ascii_graphic()),
    };
    let fits = text.len() <= MAX_TRACEPARENT_BYTES && rest_fits && version != "ff";
    fits && is_hex(version, 2) && is_id(trace, 32) && is_id(span, 16) && is_hex(flags, 2)
}
