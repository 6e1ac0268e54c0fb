//! Log lines about many things alike: a bounded number of them a second, and the others as a count.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Lines of one kind that are written in one second. Enough to name what a person can look at.
const LINES_PER_SECOND: usize = 20;
const SECOND: Duration = Duration::from_secs(1);

/// What was written of one kind of lines.
#[derive(Debug)]
pub struct Lines(Mutex<State>);

#[derive(Debug)]
struct State {
    second: Option<Instant>,
    said: usize,
    counted: bool,
    untold: u64,
}

impl Lines {
    /// Nothing was written yet.
    pub const fn new() -> Self {
        Self(Mutex::new(State { second: None, said: 0, counted: false, untold: 0 }))
    }

    /// Writes a line for each item while there is room in this second, and once a second the number of those for which
    /// there was none. What is not told when a burst ends is told with the next one.
    pub fn tell<T>(
        &self,
        now: Instant,
        items: impl ExactSizeIterator<Item = T>,
        line: impl FnMut(T),
        count: impl FnOnce(u64),
    ) {
        let (said, untold) = self.allow(now, items.len());
        items.take(said).for_each(line);
        if untold > 0 {
            count(untold);
        }
    }

    /// How many of so many lines may be written now, and how many others are to be counted.
    fn allow(&self, now: Instant, wanted: usize) -> (usize, u64) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.second.is_none_or(|second| now.saturating_duration_since(second) >= SECOND) {
            (state.second, state.said, state.counted) = (Some(now), 0, false);
        }
        let said = wanted.min(LINES_PER_SECOND - state.said);
        state.said += said;
        state.untold += (wanted - said) as u64;
        if state.counted || state.untold == 0 {
            return (said, 0);
        }
        state.counted = true;
        (said, std::mem::take(&mut state.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_things_are_some_lines_and_one_count() {
        let lines = Lines::new();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(lines.allow(at(0), 5), (5, 0), "few are named");
        assert_eq!(lines.allow(at(1), 10_000), (LINES_PER_SECOND - 5, 9_985));
        assert_eq!(lines.allow(at(2), 7), (0, 0), "nothing more in this second");
        assert_eq!(lines.allow(at(1_000), 1), (1, 7), "but nothing is forgotten");
        assert_eq!(lines.allow(at(2_000), 1), (1, 0));
    }
}
