//! Latencies: collected by workers, handed over as a line of JSON, merged by the bench.

use anyhow::Context as _;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Digits that are kept of each value.
const DIGITS: u8 = 3;

/// A distribution of durations, in nanoseconds.
#[derive(Debug, Clone)]
pub(crate) struct Latency(Histogram<u64>);

impl Latency {
    /// An empty one.
    pub(crate) fn new() -> anyhow::Result<Self> {
        Histogram::new(DIGITS).map(Self).context("make a histogram")
    }

    /// Adds a duration.
    pub(crate) fn record(&mut self, nanos: u64) {
        // It grows as needed.
        self.0 += nanos;
    }

    /// Adds the time since then.
    pub(crate) fn record_since(&mut self, began: Instant) {
        self.record(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds another distribution.
    pub(crate) fn add(&mut self, other: &Self) {
        // It grows as needed.
        self.0 += &other.0;
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// The duration that this share of all does not exceed, in milliseconds.
    #[expect(clippy::cast_precision_loss, reason = "durations are far below 2^53 nanoseconds")]
    pub(crate) fn quantile_ms(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / 1e6
    }

    /// As pairs of value and count.
    pub(crate) fn to_json(&self) -> Value {
        self.0.iter_recorded().map(|entry| json!([entry.value_iterated_to(), entry.count_at_value()])).collect()
    }

    /// Adds pairs of value and count.
    pub(crate) fn add_json(&mut self, pairs: &Value) -> anyhow::Result<()> {
        for pair in pairs.as_array().context("read a histogram")? {
            let number = |at: usize| pair[at].as_u64().context("read a pair of a histogram");
            self.0.record_n(number(0)?, number(1)?).context("add to a histogram")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_survives_its_way_through_json() -> anyhow::Result<()> {
        let mut sent = Latency::new()?;
        for millis in 1..=100 {
            sent.record(millis * 1_000_000);
        }
        let mut received = Latency::new()?;
        received.add_json(&sent.to_json())?;
        assert_eq!(received.count(), 100);
        assert!((received.quantile_ms(0.5) - 50.0).abs() < 0.5);
        assert!((received.quantile_ms(0.99) - 99.0).abs() < 0.5);
        assert!(received.add_json(&json!([["x", 1]])).is_err());
        Ok(())
    }
}
