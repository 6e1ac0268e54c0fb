//! Checks of configured values.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::ensure;
use humantime::format_duration;

/// Parses durations of flags, such as `250ms`, `5s` or `1m 30s`. For clap's `value_parser`.
pub fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write a duration such as 250ms, 5s or 1m 30s"))
}

/// Refuses a value outside of the range; the error names the flag, the value and the bounds.
pub fn check_range<T: PartialOrd + Copy + Display>(
    flag: &str,
    value: T,
    range: RangeInclusive<T>,
) -> anyhow::Result<()> {
    let inside = range.contains(&value);
    let (low, high) = range.into_inner();
    ensure!(inside, "{flag} is {value}: must be between {low} and {high}");
    Ok(())
}

/// Refuses a duration outside of the range; the error names the flag, the duration and the bounds.
pub fn check_duration(flag: &str, value: Duration, range: RangeInclusive<Duration>) -> anyhow::Result<()> {
    let (low, high) = range.into_inner();
    ensure!(
        (low..=high).contains(&value),
        "{flag} is {}: must be between {} and {}",
        format_duration(value),
        format_duration(low),
        format_duration(high)
    );
    Ok(())
}

/// Refuses what any of the checks refuses, in one message; the settings of a process are judged together.
pub fn check_all(checks: impl IntoIterator<Item = anyhow::Result<()>>) -> anyhow::Result<()> {
    let problems = checks.into_iter().filter_map(Result::err).map(|problem| format!("{problem:#}"));
    let problems = problems.collect::<Vec<_>>().join(";\n");
    ensure!(problems.is_empty(), problems);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_out_of_range_is_refused_with_flag_value_and_bounds() {
        assert!(check_range("--page-size", 1_000, 1..=1_000).is_ok());
        let error = check_range("--page-size", 0, 1..=1_000).unwrap_err();
        assert_eq!(error.to_string(), "--page-size is 0: must be between 1 and 1000");
        let range = Duration::from_millis(100)..=Duration::from_mins(1);
        let error = check_duration("--period", Duration::ZERO, range).unwrap_err();
        assert_eq!(error.to_string(), "--period is 0s: must be between 100ms and 1m");
    }

    #[test]
    fn everything_that_is_refused_is_told_in_one_message() {
        assert!(check_all([Ok(()), Ok(())]).is_ok());
        let error = check_all([check_range("--a", 0, 1..=2), Ok(()), check_range("--b", 3, 1..=2)]).unwrap_err();
        assert_eq!(error.to_string(), "--a is 0: must be between 1 and 2;\n--b is 3: must be between 1 and 2");
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert!(duration("15").is_err());
        assert!(duration("-1s").is_err());
    }
}
