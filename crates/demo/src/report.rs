//! The table at the end.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

use crate::{metrics, outcome::Outcome};

/// The scheduler's count of writes that came with a token that is no longer valid.
const STALE: &str = "fencepost_writes_stale_refused_total";

/// One line for each number.
pub(crate) fn table(outcomes: &[Outcome], text: &str, elapsed: Duration) -> String {
    let mut latencies: Vec<Duration> = outcomes.iter().filter_map(|outcome| outcome.latency).collect();
    latencies.sort_unstable();
    let stale = metrics::sum(text, STALE);
    let rows = [
        ("jobs", outcomes.len().to_string()),
        ("attempts", outcomes.iter().map(|outcome| outcome.attempts).sum::<usize>().to_string()),
        ("lease losses", outcomes.iter().map(|outcome| outcome.lease_losses).sum::<u32>().to_string()),
        ("stale writes refused", format!("{stale:.0}")),
        ("effects", outcomes.iter().filter(|outcome| outcome.effect.is_some()).count().to_string()),
        ("jobs/s", format!("{:.0}", per_second(outcomes.len(), elapsed))),
        ("latency p50", milliseconds(percentile(&latencies, 50))),
        ("latency p99", milliseconds(percentile(&latencies, 99))),
    ];
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    for (name, value) in rows {
        table.add_row([name.to_owned(), value]);
    }
    if let Some(values) = table.column_mut(1) {
        values.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

#[expect(clippy::cast_precision_loss, reason = "numbers of files are far below what a double holds exactly")]
fn per_second(jobs: usize, elapsed: Duration) -> f64 {
    jobs as f64 / elapsed.as_secs_f64().max(f64::EPSILON)
}

/// The smallest value that so many percent do not exceed; the values are sorted.
fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

fn milliseconds(duration: Option<Duration>) -> String {
    duration.map_or_else(|| "-".to_owned(), |duration| format!("{} ms", duration.as_millis()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&values, 50), Some(Duration::from_millis(100)));
        assert_eq!(percentile(&values, 99), Some(Duration::from_millis(198)));
        assert_eq!(percentile(&values[..1], 50), Some(Duration::from_millis(1)));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn table_counts_effects_and_refused_writes() {
        let one = Outcome { effect: Some(Vec::new()), attempts: 2, lease_losses: 1, ..Outcome::default() };
        let metrics = "fencepost_writes_stale_refused_total{scope=\"x\"} 3\n";
        let text = table(&[one, Outcome::default()], metrics, Duration::from_secs(2));
        let row = |name: &str| text.lines().find(|line| line.contains(name)).unwrap_or_default().replace(' ', "");
        assert_eq!(row("stale writes"), "stalewritesrefused3");
        assert_eq!(row("effects"), "effects1");
        assert_eq!(row("jobs/s"), "jobs/s1");
    }
}
