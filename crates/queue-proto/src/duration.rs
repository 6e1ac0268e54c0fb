//! Durations and times.

use std::time::Duration;

use prost_types::Timestamp;
use queue_core::Invalid;

const NANOS_PER_SECOND: u32 = 1_000_000_000;

/// A duration from outside. Refuses negative ones and those whose nanoseconds make up a second or more, which would be
/// another duration than it seems.
pub fn to_duration(field: &str, value: prost_types::Duration) -> Result<Duration, Invalid> {
    let negative = || Invalid::new(field, "must be a duration that is not negative");
    let seconds = u64::try_from(value.seconds).map_err(|_| negative())?;
    let nanos = u32::try_from(value.nanos).map_err(|_| negative())?;
    if nanos >= NANOS_PER_SECOND {
        return Err(Invalid::new(field, format!("must have nanos of 0 to 999999999, has {nanos}")));
    }
    Ok(Duration::new(seconds, nanos))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn duration(seconds: i64, nanos: i32) -> Result<Duration, Invalid> {
        to_duration("delay", prost_types::Duration { seconds, nanos })
    }

    #[test]
    fn a_duration_whose_parts_are_out_of_range_is_refused_by_name() {
        for (seconds, nanos) in [(-1, 0), (0, -1), (i64::MIN, i32::MIN), (1, 1_000_000_000), (1, 2_000_000_000)] {
            let refused = duration(seconds, nanos).unwrap_err();
            assert!(refused.to_string().starts_with("delay: "), "{refused}");
        }
        assert_eq!(duration(1, 999_999_999), Ok(Duration::new(1, 999_999_999)));
        assert_eq!(duration(i64::MAX, 0), Ok(Duration::from_secs(i64::MAX.unsigned_abs())));
    }
}
