//! What is believed of lanes: whether they hold jobs, and from which position on.
//!
//! All of it is a hint. A lane that is wrongly believed empty is found by the slow poll. Claims start at the head of a lane,
//! just behind what the last one took, because the way there leads over the dead entries of everything taken before. Rows
//! may become visible behind it: those of whoever commits late, or whose claim was rolled back. Hints that know of such rows
//! move the head back; for the others a claim starts from the low mark now and then. That one follows only what was seen to
//! be settled, a whole insert lag later, and is dropped at times, too.

use std::collections::HashMap;
use std::time::Duration;

use queue_store::{Hint, Lane};
use tokio::time::Instant;

/// Positions hold milliseconds above this many bits.
const POSITION_BITS: u32 = 22;
/// A claim starts from the low mark that often: what became visible behind the head waits so long at most.
const LOW_SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// A lane's low mark is forgotten that often: the next claim reads from the start and finds whatever was overlooked.
const FULL_SCAN_INTERVAL: Duration = Duration::from_mins(1);

/// What is believed of one lane.
#[derive(Debug)]
struct Belief {
    /// Whether it may hold jobs.
    maybe: bool,
    /// Raised by every hint, so that a claim that was under way does not overrule it.
    hints: u64,
    /// Where the next claim starts.
    head: i64,
    /// The lowest position that was hinted at since the last claim started.
    hinted: i64,
    /// Nothing is expected below.
    low: i64,
    /// Becomes the low mark one insert lag after it was true.
    next_low: i64,
    /// Highest position that was taken, or the present where nothing was left.
    reached: i64,
    /// When `next_low` was set, as a position.
    since: i64,
    /// When a claim last started from the low mark.
    low_scan: Instant,
    /// When the low mark was last dropped.
    full_scan: Instant,
}

/// What is believed of all lanes.
#[derive(Debug)]
pub struct Lanes {
    beliefs: HashMap<Lane, Belief>,
    lag: i64,
}

/// A lane as a claim starts from it.
#[derive(Debug, Clone, Copy)]
pub struct Started {
    /// The lane.
    pub lane: Lane,
    /// Position to start at.
    pub from: i64,
    hints: u64,
}

impl Lanes {
    /// Knows no lanes. `insert_lag` is the longest time in which a position that was given out may still be committed.
    pub fn new(insert_lag: Duration) -> Self {
        let millis = i64::try_from(insert_lag.as_millis()).unwrap_or(i64::MAX >> POSITION_BITS);
        Self { beliefs: HashMap::new(), lag: millis << POSITION_BITS }
    }

    /// Whether the lane was heard of before.
    pub fn knows(&self, lane: Lane) -> bool {
        self.beliefs.contains_key(&lane)
    }

    /// The lane is there.
    pub fn learn(&mut self, lane: Lane, now: Instant) {
        let fresh = Belief {
            maybe: false,
            hints: 0,
            head: 0,
            hinted: i64::MAX,
            low: 0,
            next_low: 0,
            reached: 0,
            since: 0,
            low_scan: now,
            full_scan: now,
        };
        self.beliefs.entry(lane).or_insert(fresh);
    }

    /// The lane may hold jobs, if it is known.
    pub fn hint(&mut self, hint: Hint) {
        if let Some(belief) = self.beliefs.get_mut(&hint.lane) {
            belief.maybe = true;
            belief.hints += 1;
            belief.head = belief.head.min(hint.from);
            belief.hinted = belief.hinted.min(hint.from);
        }
    }

    /// Forgets both marks: something went wrong, or hints were missed.
    pub fn doubt(&mut self, lane: Lane) {
        self.hint(Hint::anywhere(lane));
        if let Some(belief) = self.beliefs.get_mut(&lane) {
            belief.low = 0;
            belief.next_low = 0;
        }
    }

    /// Whether the lane may hold jobs.
    pub fn maybe(&self, lane: Lane) -> bool {
        self.beliefs.get(&lane).is_some_and(|belief| belief.maybe)
    }

    /// The lowest position at which the lane may hold jobs.
    pub fn low(&self, lane: Lane) -> i64 {
        self.beliefs.get(&lane).map_or(0, |belief| belief.low)
    }

    /// A claim starts.
    pub fn start(&mut self, lane: Lane, now: Instant) -> Started {
        let Some(belief) = self.beliefs.get_mut(&lane) else { return Started { lane, from: 0, hints: 0 } };
        if now.duration_since(belief.full_scan) >= FULL_SCAN_INTERVAL {
            belief.full_scan = now;
            belief.low = 0;
            belief.head = 0;
        }
        if now.duration_since(belief.low_scan) >= LOW_SCAN_INTERVAL {
            belief.low_scan = now;
            belief.head = belief.low;
        }
        belief.hinted = i64::MAX;
        Started { lane, from: belief.head.max(belief.low), hints: belief.hints }
    }

    /// A claim ended that took jobs up to `highest` and, if `emptied`, left none that it could see. `now` is the present as
    /// a position, by the clock of the database.
    pub fn end(&mut self, started: Started, highest: Option<i64>, emptied: bool, now: i64) {
        let lag = self.lag;
        let Some(belief) = self.beliefs.get_mut(&started.lane) else { return };
        if let Some(highest) = highest {
            // Ids of one millisecond have no order: the head stays at its beginning.
            belief.head = (highest >> POSITION_BITS << POSITION_BITS).min(belief.hinted);
        }
        belief.reached = belief.reached.max(highest.unwrap_or(0)).max(if emptied { now } else { 0 });
        if now.saturating_sub(belief.since) >= lag {
            // What was skipped because another transaction had it locked has had a whole lag to come back.
            belief.low = belief.low.max(belief.next_low);
            belief.next_low = belief.reached.min(now.saturating_sub(lag));
            belief.since = now;
        }
        if emptied && belief.hints == started.hints {
            belief.maybe = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANE: Lane = Lane { queue: 1, priority: 4, kind: 1 };
    const LAG: Duration = Duration::from_secs(8);

    fn at(seconds: i64) -> i64 {
        (seconds * 1_000) << POSITION_BITS
    }

    fn lanes() -> (Lanes, Instant) {
        let now = Instant::now();
        let mut lanes = Lanes::new(LAG);
        lanes.learn(LANE, now);
        lanes.hint(Hint::anywhere(LANE));
        (lanes, now)
    }

    #[tokio::test]
    async fn a_hint_during_a_claim_that_found_nothing_keeps_the_lane_awake() {
        let (mut lanes, now) = lanes();
        let started = lanes.start(LANE, now);
        lanes.hint(Hint::anywhere(LANE));
        lanes.end(started, None, true, at(100));
        assert!(lanes.maybe(LANE));
        let started = lanes.start(LANE, now);
        lanes.end(started, None, true, at(101));
        assert!(!lanes.maybe(LANE));
    }

    #[tokio::test]
    async fn the_low_mark_never_passes_what_an_insert_under_way_may_still_hold() {
        let (mut lanes, now) = lanes();
        for second in 100..200 {
            let started = lanes.start(LANE, now);
            assert!(lanes.low(LANE) <= at(second - 16).max(0), "at second {second}");
            lanes.end(started, Some(at(second)), true, at(second));
        }
        assert!(lanes.low(LANE) >= at(170), "but it follows");
    }

    #[tokio::test]
    async fn the_low_mark_stays_below_jobs_that_are_still_there() {
        let (mut lanes, now) = lanes();
        // An old backlog: the claims take positions of long ago.
        for second in 1_000..1_100 {
            let started = lanes.start(LANE, now);
            assert!(lanes.low(LANE) <= at(second - 900));
            lanes.end(started, Some(at(second - 900)), false, at(second));
        }
    }

    #[tokio::test]
    async fn now_and_then_a_claim_reads_from_the_start() {
        let (mut lanes, now) = lanes();
        for second in 100..150 {
            let started = lanes.start(LANE, now);
            lanes.end(started, None, true, at(second));
        }
        assert!(lanes.start(LANE, now).from > 0);
        assert_eq!(lanes.start(LANE, now + FULL_SCAN_INTERVAL).from, 0);
    }

    #[tokio::test]
    async fn claims_start_behind_what_the_last_one_took_and_now_and_then_from_the_low_mark() {
        let (mut lanes, now) = lanes();
        let started = lanes.start(LANE, now);
        assert_eq!(started.from, 0);
        lanes.end(started, Some(at(100) + 7), false, at(101));
        assert_eq!(lanes.start(LANE, now).from, at(100), "from the beginning of that millisecond");
        assert_eq!(lanes.start(LANE, now + LOW_SCAN_INTERVAL).from, lanes.low(LANE));
    }

    #[tokio::test]
    async fn a_hint_moves_the_head_back_also_while_a_claim_is_under_way() {
        let (mut lanes, now) = lanes();
        let started = lanes.start(LANE, now);
        lanes.end(started, Some(at(100)), false, at(101));
        lanes.hint(Hint { lane: LANE, from: at(90) });
        let started = lanes.start(LANE, now);
        assert_eq!(started.from, at(90));
        lanes.hint(Hint { lane: LANE, from: at(80) });
        lanes.end(started, Some(at(102)), false, at(103));
        assert_eq!(lanes.start(LANE, now).from, at(80));
    }
}
