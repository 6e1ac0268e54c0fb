//! Durations and times.

use std::time::Duration;

use prost_types::Timestamp;
use queue_core::Invalid;

/// A duration from outside. Refuses negative ones and those past 10,000 years.
pub fn to_duration(field: &str, value: prost_types::Duration) -> Result<Duration, Invalid> {
    let negative = || Invalid::new(field, "must be a duration that is not negative");
    // Looked at before the conversion, which negates what is negative: the smallest number overflows there.
    if value.seconds < 0 || value.nanos < 0 {
        return Err(negative());
    }
    Duration::try_from(value).map_err(|_| negative())
}

/// A duration as it travels; one too long for the wire is cut to the longest.
pub fn millis(value: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(value)
        .unwrap_or(prost_types::Duration { seconds: 315_576_000_000, nanos: 999_999_999 })
}

/// A stored time, in microseconds since 1970.
pub fn to_timestamp(micros: i64) -> Timestamp {
    let nanos = i32::try_from(micros.rem_euclid(1_000_000) * 1_000).unwrap_or_default();
    Timestamp { seconds: micros.div_euclid(1_000_000), nanos }
}

/// A time from outside, in microseconds since 1970. Refuses what is no time of the years 1 to 2199.
pub(crate) fn from_timestamp(field: &str, value: Timestamp) -> Result<i64, Invalid> {
    // From 0001-01-01, where the type itself begins, to 2199-12-31: the database computes with microseconds as
    // floating-point numbers, which are exact for 2^53 of them, until the year 2255.
    if !(-62_135_596_800..=7_258_118_399).contains(&value.seconds) || !(0..1_000_000_000).contains(&value.nanos) {
        return Err(Invalid::new(field, "must be a time of the years 1 to 2199"));
    }
    Ok(value.seconds * 1_000_000 + i64::from(value.nanos) / 1_000)
}
