//! What the dispatcher knows of one connected session: how many jobs it has room for.

use std::collections::BTreeMap;
use std::time::Duration;

use queue_store::{Owner, SlotRequest};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::grants::Claims;

/// How often all that a session holds is looked for, and not only what its worker lists.
const FULL_LOOK_INTERVAL: Duration = Duration::from_mins(1);

/// One connected session.
pub struct Seat {
    /// Whose it is.
    pub owner: Owner,
    /// Jobs that the worker had room for since its stream began.
    pub credit: u64,
    /// Jobs granted since then.
    pub granted: u64,
    /// Slots that a statement under way may fill.
    pub reserved: u64,
    /// Whether its worker acknowledges what it is granted. Until it has done so on this stream it gets a single job: one that
    /// is silent by mistake would take whole queues and keep them for the time of the acknowledgement.
    pub trusted: bool,
    /// Whether its worker wants no more. The seat stays until the stream ends, or another one of the session takes it.
    pub closed: bool,
    /// When the session may last have got leases that nobody knows of.
    doubted: Instant,
    /// When all that it holds was last looked for.
    looked: Option<Instant>,
    /// Dropped when the seat goes to another stream or the session turns out to be lost: that tells the stream.
    pub grants: mpsc::Sender<Claims>,
}

impl Seat {
    /// A seat whose worker has said nothing yet.
    pub fn new(owner: Owner, grants: mpsc::Sender<Claims>) -> Self {
        Self {
            owner,
            credit: 0,
            granted: 0,
            reserved: 0,
            trusted: false,
            closed: false,
            doubted: Instant::now(),
            looked: None,
            grants,
        }
    }

    /// A statement that leases may have been committed unanswered: the session may hold what its worker was never told of.
    pub fn doubt(&mut self) {
        self.doubted = Instant::now();
    }

    /// Whether all that the session holds is to be looked for now: at first and after each doubt until what such a
    /// statement has leased is old enough to be taken back, once after that, and now and then.
    pub fn needs_look(&self, now: Instant, lag: Duration) -> bool {
        let settled = self.doubted + lag;
        self.looked.is_none_or(|looked| looked <= settled || now >= looked + FULL_LOOK_INTERVAL)
    }

    /// All that the session held at this time is known.
    pub fn looked(&mut self, now: Instant) {
        self.looked = Some(now);
    }

    /// Slots that the worker has free.
    pub fn room(&self) -> u64 {
        if self.closed { 0 } else { self.credit.saturating_sub(self.granted) }
    }

    /// Slots that may be filled now.
    pub fn free(&self) -> u32 {
        let bound = if self.trusted { u64::MAX } else { 1_u64.saturating_sub(self.granted) };
        self.room().min(bound).saturating_sub(self.reserved).try_into().unwrap_or(u32::MAX)
    }
}

/// How many of these slots each session has.
pub fn requests(slots: &[Owner]) -> Vec<SlotRequest> {
    let mut counts: BTreeMap<Owner, u32> = BTreeMap::new();
    for &owner in slots {
        *counts.entry(owner).or_default() += 1;
    }
    counts.into_iter().map(|(owner, slots)| SlotRequest { owner, slots }).collect()
}

#[cfg(test)]
mod tests {
    use queue_store::SchedulerId;

    use super::*;

    #[tokio::test]
    async fn all_leases_are_looked_for_in_doubt_once_after_it_and_now_and_then() {
        let lag = Duration::from_secs(8);
        let owner = Owner { session_no: 1, epoch: 1, scheduler: SchedulerId(1) };
        let mut seat = Seat::new(owner, mpsc::channel(1).0);
        let opened = Instant::now();
        let looks = |seat: &mut Seat, seconds: u64| {
            let now = opened + Duration::from_secs(seconds);
            let needed = seat.needs_look(now, lag);
            if needed {
                seat.looked(now);
            }
            needed
        };
        let seen = [0, 5, 10, 15, 65, 75, 80].map(|seconds| looks(&mut seat, seconds));
        assert_eq!(seen, [true, true, true, false, false, true, false]);
        seat.doubted = opened + Duration::from_secs(81);
        assert_eq!([85, 90, 95].map(|seconds| looks(&mut seat, seconds)), [true, true, false]);
        assert!(seat.needs_look(opened + Duration::from_secs(151), lag));
    }
}
