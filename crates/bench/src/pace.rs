//! Open load: jobs fall due at a fixed rate, whatever becomes of those before them.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Jobs are sent in portions of what fell due within so long.
const TICK: Duration = Duration::from_millis(5);

/// A rate that is kept for a time.
#[derive(Debug)]
pub(crate) struct Pace {
    rate: f64,
    began: Instant,
    end: Instant,
    /// Until when the jobs that fell due were given out, in seconds since the beginning.
    given: f64,
}

/// Jobs that have fallen due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Due {
    /// How many.
    pub(crate) jobs: usize,
    /// When the first of them did.
    pub(crate) since: Instant,
}

impl Pace {
    /// So many jobs a second from now on, for so long.
    pub(crate) fn new(rate: f64, time: Duration) -> Self {
        let began = Instant::now();
        Self { rate, began, end: began + time, given: 0.0 }
    }

    /// What has fallen due since the last call, at most so many; waits until the tick is over. `None` at the end.
    pub(crate) async fn next(&mut self, most: usize) -> Option<Due> {
        let since = self.began + Duration::from_secs_f64(self.given);
        if since >= self.end {
            return None;
        }
        sleep_until(since + TICK).await;
        let jobs = whole((self.began.elapsed().as_secs_f64() - self.given) * self.rate).clamp(1, most);
        #[expect(clippy::cast_precision_loss, reason = "at most a batch")]
        let jobs_f64 = jobs as f64;
        self.given += jobs_f64 / self.rate;
        Some(Due { jobs, since })
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and small")]
fn whole(jobs: f64) -> usize {
    jobs as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn as_many_jobs_fall_due_as_the_rate_says_and_a_delay_is_made_up() {
        let (mut pace, mut jobs) = (Pace::new(10_000.0, Duration::from_millis(100)), 0);
        while let Some(due) = pace.next(400).await {
            jobs += due.jobs;
        }
        // The last portion may reach past the end.
        assert!((1_000..=1_400).contains(&jobs), "{jobs}");
    }
}
