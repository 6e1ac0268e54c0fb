//! What the dispatcher knows of one connected session: how many jobs it has room for.

use std::collections::BTreeMap;

use queue_store::{Claimed, Owner, SlotRequest};
use tokio::sync::mpsc;

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
    /// Whether its worker acknowledges what it is granted. Until it has done so, and after it was late, it gets one job at
    /// a time: one that is silent by mistake would take whole queues and keep them for the time of the acknowledgement.
    pub trusted: bool,
    /// Of the jobs granted to a worker that is not trusted: how many were acknowledged or taken back.
    pub resolved: u64,
    /// Whether its worker wants no more. The seat stays until the stream ends, or another one of the session takes it.
    pub closed: bool,
    /// Dropped when the seat goes to another stream or the session turns out to be lost: that tells the stream.
    pub grants: mpsc::Sender<Vec<Claimed>>,
}

impl Seat {
    /// A seat whose worker has said nothing yet.
    pub fn new(owner: Owner, grants: mpsc::Sender<Vec<Claimed>>) -> Self {
        Self { owner, credit: 0, granted: 0, reserved: 0, trusted: false, resolved: 0, closed: false, grants }
    }

    /// Slots that the worker has free.
    pub fn room(&self) -> u64 {
        if self.closed { 0 } else { self.credit.saturating_sub(self.granted) }
    }

    /// Slots that may be filled now.
    pub fn free(&self) -> u32 {
        let unresolved = self.granted.saturating_sub(self.resolved);
        let bound = if self.trusted { u64::MAX } else { 1_u64.saturating_sub(unresolved) };
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
