//! How long commits took, as the schedulers count it.

use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// The histogram that is read.
const NAME: &str = "fencepost_commit_duration_seconds_bucket";

/// A histogram: upper bounds in seconds, ascending, with how many commits took no longer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Commits(Vec<(f64, f64)>);

impl Commits {
    /// Those of one writer since the scheduler's start, read from its metrics.
    pub(crate) async fn read(metrics: SocketAddr, writer: &str) -> anyhow::Result<Self> {
        let mut stream = TcpStream::connect(metrics).await.context("connect to the scheduler's metrics")?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.context("ask for metrics")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.context("read metrics")?;
        ensure!(answer.contains(" 200 OK"), "the scheduler gives no metrics: {answer}");
        Self::parse(&answer, writer)
    }

    fn parse(text: &str, writer: &str) -> anyhow::Result<Self> {
        let mut buckets = Vec::new();
        for line in text.lines().filter(|line| line.starts_with(NAME)) {
            if !line.contains(&format!("writer=\"{writer}\"")) {
                continue;
            }
            let bound =
                line.split_once("le=\"").and_then(|(_, rest)| rest.split_once('"')).context("a bucket has no bound")?.0;
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse()? };
            let count = line.rsplit_once(' ').context("a bucket has no count")?.1;
            buckets.push((bound, count.parse()?));
        }
        Ok(Self(buckets))
    }

    /// With those of another scheduler.
    pub(crate) fn add(&mut self, other: &Self) {
        self.combine(other, |ours, theirs| ours + theirs);
    }

    /// Without those of an earlier reading.
    pub(crate) fn subtract(&mut self, earlier: &Self) {
        self.combine(earlier, |ours, theirs| ours - theirs);
    }

    fn combine(&mut self, other: &Self, with: impl Fn(f64, f64) -> f64) {
        if self.0.is_empty() {
            self.0 = other.0.iter().map(|&(bound, _)| (bound, 0.0)).collect();
        }
        for ((_, ours), (_, theirs)) in self.0.iter_mut().zip(&other.0) {
            *ours = with(*ours, *theirs);
        }
    }

    /// Milliseconds that this share of the commits did not exceed, taken to lie evenly within a bucket; `None` without any.
    pub(crate) fn quantile_ms(&self, share: f64) -> Option<f64> {
        let rank = self.0.last()?.1 * share;
        let (mut low, mut below) = (0.0, 0.0);
        for &(bound, count) in &self.0 {
            if count >= rank && count > 0.0 {
                let high = if bound.is_finite() { bound } else { low };
                return Some((low + (high - low) * (rank - below) / (count - below)) * 1e3);
            }
            (low, below) = (bound, count);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# TYPE fencepost_commit_duration_seconds histogram
fencepost_commit_duration_seconds_bucket{writer=\"claim\",le=\"0.001\"} 50
fencepost_commit_duration_seconds_bucket{writer=\"claim\",le=\"0.002\"} 100
fencepost_commit_duration_seconds_bucket{writer=\"claim\",le=\"+Inf\"} 100
fencepost_commit_duration_seconds_bucket{writer=\"settle\",le=\"0.001\"} 7
fencepost_commit_duration_seconds_count{writer=\"claim\"} 100
";

    fn close(found: Option<f64>, expected: f64) -> bool {
        found.is_some_and(|found| (found - expected).abs() < 1e-9)
    }

    #[test]
    fn quantiles_lie_within_their_buckets() -> anyhow::Result<()> {
        let claims = Commits::parse(TEXT, "claim")?;
        assert!(close(claims.quantile_ms(0.5), 1.0) && close(claims.quantile_ms(0.9), 1.8));
        assert_eq!(Commits::parse(TEXT, "enqueue")?.quantile_ms(0.5), None);
        Ok(())
    }

    #[test]
    fn readings_are_added_and_subtracted() -> anyhow::Result<()> {
        let claims = Commits::parse(TEXT, "claim")?;
        let mut both = Commits::default();
        both.add(&claims);
        both.add(&claims);
        both.subtract(&claims);
        assert_eq!(both, claims);
        both.subtract(&Commits::default());
        assert_eq!(both, claims);
        Ok(())
    }
}
