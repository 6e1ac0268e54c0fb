//! At most one line per key and interval.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Lets one log line per key through in each interval, and counts the others.
///
/// For faults that repeat much faster than anybody reads, such as a database that is gone. Keys are literals, so that
/// their number is bounded by the code.
#[derive(Debug)]
pub struct LogLimit {
    interval: Duration,
    seen: Mutex<HashMap<&'static str, Seen>>,
}

#[derive(Debug)]
struct Seen {
    last: Instant,
    suppressed: u64,
}

impl Default for LogLimit {
    fn default() -> Self {
        Self::per_second()
    }
}

impl LogLimit {
    /// One line a second.
    pub fn per_second() -> Self {
        Self::every(Duration::from_secs(1))
    }

    /// One line an interval.
    pub fn every(interval: Duration) -> Self {
        Self { interval, seen: Mutex::default() }
    }

    /// Whether to log now: the number of lines suppressed since the last one, or none if this one is suppressed.
    ///
    /// ```
    /// # let (limit, error) = (telemetry::LogLimit::per_second(), "gone");
    /// # let now = tokio::time::Instant::now();
    /// if let Some(suppressed) = limit.allow("database", now) {
    ///     tracing::warn!(error, suppressed, "database unavailable");
    /// }
    /// ```
    pub fn allow(&self, key: &'static str, now: Instant) -> Option<u64> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match seen.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(Seen { last: now, suppressed: 0 });
                Some(0)
            }
            Entry::Occupied(entry) => {
                let seen = entry.into_mut();
                if now.saturating_duration_since(seen.last) < self.interval {
                    seen.suppressed += 1;
                    return None;
                }
                seen.last = now;
                Some(std::mem::take(&mut seen.suppressed))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_per_key_and_the_suppressed_are_counted() {
        let limit = LogLimit::per_second();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(limit.allow("a", at(0)), Some(0));
        assert_eq!(limit.allow("a", at(1)), None);
        assert_eq!(limit.allow("a", at(999)), None);
        assert_eq!(limit.allow("b", at(999)), Some(0), "another key has its own line");
        assert_eq!(limit.allow("a", at(1_000)), Some(2));
        assert_eq!(limit.allow("a", at(2_000)), Some(0));
    }

    #[test]
    fn a_clock_read_out_of_order_is_suppressed() {
        let limit = LogLimit::per_second();
        let start = Instant::now() + Duration::from_secs(5);
        assert_eq!(limit.allow("a", start), Some(0));
        assert_eq!(limit.allow("a", start.checked_sub(Duration::from_secs(1)).unwrap()), None);
    }
}
