//! The dispatcher: matches free slots with lanes that may hold jobs, one claim at a time.
//!
//! Its state is small and behind one lock that is never held across an await. Everybody who changes it wakes the loop; an
//! idle scheduler does nothing here.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use queue_core::{MAX_BATCH, MAX_BATCH_BYTES};
use queue_store::{Claim, ClaimRequest, Claimed, Hint, Lane, Owner, Registry, SlotRequest};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::grants::Claims;
use crate::lanes::{Lanes, Started};
use crate::profile::{Profile, Wants};
use crate::seat::{Seat, requests};

/// Lanes of one claim. Each may have a batch of rows locked for the time of the statement.
const LANES_PER_CLAIM: usize = 16;

/// The way to the dispatcher.
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    wake: Notify,
    registry: Arc<Registry>,
}

struct State {
    lanes: Lanes,
    profiles: Vec<(Wants, Profile)>,
    seats: HashMap<i64, Seat>,
    /// The profile that is looked at first: they take turns.
    turn: usize,
}

/// A claim that is to be made.
pub struct Plan {
    /// What to ask the database for.
    pub request: ClaimRequest,
    started: Vec<Started>,
}

impl Handle {
    /// Knows nothing yet.
    pub fn new(registry: Arc<Registry>, insert_lag: Duration) -> Self {
        let state = State { lanes: Lanes::new(insert_lag), profiles: Vec::new(), seats: HashMap::new(), turn: 0 };
        Self(Arc::new(Shared { state: Mutex::new(state), wake: Notify::new(), registry }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These lanes may hold jobs.
    pub fn hint(&self, hints: &[Hint]) {
        if hints.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut state = self.state();
        for &hint in hints {
            state.hint(hint, now, &self.0.registry);
        }
        drop(state);
        self.0.wake.notify_one();
    }

    /// These lanes are registered. Whether they hold jobs is for others to say.
    pub fn learn(&self, lanes: &[Lane]) {
        let now = Instant::now();
        let mut state = self.state();
        for &lane in lanes {
            state.learn(lane, now, &self.0.registry);
        }
    }

    /// Hints may have been missed, or a commit's answer: reads these lanes from their start once.
    pub fn doubt(&self, lanes: &[Lane]) {
        let mut state = self.state();
        for &lane in lanes {
            state.lanes.doubt(lane);
        }
        drop(state);
        self.0.wake.notify_one();
    }

    /// The lowest position at which a lane may hold jobs.
    pub fn low(&self, lane: Lane) -> i64 {
        self.state().lanes.low(lane)
    }

    /// Lanes that sessions with free slots wait for although nothing is known to be in them, with their low marks.
    pub fn quiet_lanes(&self) -> Vec<(Lane, i64)> {
        let state = self.state();
        let hungry = state.profiles.iter().filter(|(_, profile)| state.room(profile) > 0);
        let mut lanes: Vec<Lane> = hungry.flat_map(|(_, profile)| profile.lanes()).collect();
        lanes.sort_unstable();
        lanes.dedup();
        lanes.retain(|&lane| !state.lanes.maybe(lane));
        lanes.into_iter().map(|lane| (lane, state.lanes.low(lane))).collect()
    }

    /// A session's stream has begun. What an earlier stream of the session had is forgotten; if this one is the earlier,
    /// because two Hellos overtook each other, it gets no seat.
    pub fn enter(&self, owner: Owner, wants: Wants, grants: mpsc::Sender<Claims>) {
        let mut state = self.state();
        if state.is_replaced(owner) {
            return;
        }
        state.leave(owner.session_no);
        state.seats.insert(owner.session_no, Seat::new(owner, grants));
        state.profile(wants, &self.0.registry).sessions.push(owner.session_no);
    }

    /// A session's worker acknowledges what it is granted.
    pub fn trust(&self, owner: Owner) {
        if let Some(seat) = self.state().seat(owner) {
            seat.trusted = true;
        }
        self.0.wake.notify_one();
    }

    /// Whether no statement is under way that may lease jobs for a session: what was leased is handed to its stream.
    pub fn is_quiet(&self, owner: Owner) -> bool {
        self.state().seat(owner).is_none_or(|seat| seat.reserved == 0)
    }

    /// A session's stream gets no more jobs, but goes on.
    pub fn close(&self, owner: Owner) {
        if let Some(seat) = self.state().seat(owner) {
            seat.closed = true;
        }
    }

    /// Whether a later stream of the session is served here.
    pub fn is_replaced(&self, owner: Owner) -> bool {
        self.state().is_replaced(owner)
    }

    /// A session's stream has ended. A later one of the same session is not touched.
    pub fn leave(&self, owner: Owner) {
        let mut state = self.state();
        if state.seat(owner).is_some() {
            state.leave(owner.session_no);
        }
    }

    /// A session has had room for so many jobs, in all. Never decreases, so a repeat changes nothing.
    pub fn credit(&self, owner: Owner, total: u64) {
        let mut state = self.state();
        if let Some(seat) = state.seat(owner) {
            seat.credit = seat.credit.max(total);
        }
        drop(state);
        self.0.wake.notify_one();
    }

    /// Sessions that are served here.
    pub fn sessions(&self) -> usize {
        self.state().seats.len()
    }

    /// Their free slots.
    pub fn free_slots(&self) -> u64 {
        self.state().seats.values().map(Seat::room).fold(0, u64::saturating_add)
    }

    /// Waits until something has changed since the last wait.
    pub async fn changed(&self) {
        self.0.wake.notified().await;
    }

    /// The next claim that is worth making.
    pub fn plan(&self) -> Option<Plan> {
        self.state().plan(Instant::now())
    }

    /// A claim that was asked for at this time brought this. Returns the leases of sessions that have gone meanwhile.
    pub fn granted(&self, plan: &Plan, claim: Claim, asked: Instant) -> Vec<(Claimed, Owner)> {
        let mut state = self.state();
        state.unreserve(&plan.request.slots);
        state.granted(plan, claim, asked)
    }

    /// A claim failed. Whether it was committed is unknown: its rows may come back.
    pub fn failed(&self, plan: &Plan) {
        let mut state = self.state();
        state.unreserve(&plan.request.slots);
        state.doubt(&plan.request.slots);
        plan.started.iter().for_each(|started| state.lanes.doubt(started.lane));
    }

    /// Slots for new jobs of these lanes, one each, if nothing else waits for them and there are enough for all; otherwise
    /// none at all. They stay reserved until they are given back.
    pub fn reserve(&self, lanes: &[Lane]) -> Vec<Owner> {
        let mut places: BTreeMap<Lane, Vec<usize>> = BTreeMap::new();
        for (at, &lane) in lanes.iter().enumerate() {
            places.entry(lane).or_default().push(at);
        }
        let mut slots = Vec::with_capacity(lanes.len());
        let mut state = self.state();
        for (lane, places) in places {
            let owners = state.reserve(lane, places.len());
            let short = owners.len() < places.len();
            slots.extend(places.into_iter().zip(owners));
            if short {
                break;
            }
        }
        slots.sort_unstable();
        let slots: Vec<Owner> = slots.into_iter().map(|(_, owner)| owner).collect();
        if slots.len() == lanes.len() {
            return slots;
        }
        state.unreserve(&requests(&slots));
        Vec::new()
    }

    /// An enqueue for reserved slots failed. Whether it was committed is unknown.
    pub fn failed_lease(&self, reserved: &[Owner]) {
        if reserved.is_empty() {
            return;
        }
        let slots = requests(reserved);
        let mut state = self.state();
        state.unreserve(&slots);
        state.doubt(&slots);
        drop(state);
        self.0.wake.notify_one();
    }

    /// Of these sessions, those of which all leases are to be looked for, and not only those that their workers list.
    pub fn unlooked(&self, sessions: impl Iterator<Item = i64>, lag: Duration) -> HashSet<i64> {
        let (state, now) = (self.state(), Instant::now());
        sessions.filter(|session| state.seats.get(session).is_none_or(|seat| seat.needs_look(now, lag))).collect()
    }

    /// All that these sessions held at that time is known.
    pub fn looked(&self, sessions: &HashSet<i64>, at: Instant) {
        let mut state = self.state();
        for session in sessions {
            if let Some(seat) = state.seats.get_mut(session) {
                seat.looked(at);
            }
        }
    }

    /// Gives reserved slots back, and grants what was leased for them by a statement that was asked for at this time. Returns
    /// the leases of sessions that have gone meanwhile.
    pub fn leased(&self, reserved: &[Owner], jobs: Vec<Claimed>, asked: Instant) -> Vec<(Claimed, Owner)> {
        if reserved.is_empty() {
            return Vec::new();
        }
        let (slots, filled) = (requests(reserved), jobs.len() == reserved.len());
        let mut state = self.state();
        state.unreserve(&slots);
        let orphans = state.deliver(&slots, jobs, asked);
        drop(state);
        if !filled {
            // The others are free for claims.
            self.0.wake.notify_one();
        }
        orphans
    }
}

impl State {
    fn hint(&mut self, hint: Hint, now: Instant, registry: &Registry) {
        self.learn(hint.lane, now, registry);
        self.lanes.hint(hint);
    }

    /// Tells the profiles of a lane, once. One whose names are not known here yet stays unknown: the next slow look reads
    /// them. Were it taken for known, no profile would ever hear of it.
    fn learn(&mut self, lane: Lane, now: Instant, registry: &Registry) {
        let named = || registry.queue_name(lane.queue).is_some() && registry.kind_name(lane.kind).is_some();
        if !self.lanes.knows(lane) && named() {
            self.profiles.iter_mut().for_each(|(_, profile)| profile.learn(lane, registry));
            self.lanes.learn(lane, now);
        }
    }

    fn profile(&mut self, wants: Wants, registry: &Registry) -> &mut Profile {
        let at = self.profiles.iter().position(|(known, _)| *known == wants).unwrap_or_else(|| {
            let mut profile = Profile::new(&wants);
            registry.lanes().into_iter().for_each(|lane| profile.learn(lane, registry));
            self.profiles.push((wants, profile));
            self.profiles.len() - 1
        });
        &mut self.profiles[at].1
    }

    /// The seat of this very stream.
    fn seat(&mut self, owner: Owner) -> Option<&mut Seat> {
        self.seats.get_mut(&owner.session_no).filter(|seat| seat.owner == owner)
    }

    fn is_replaced(&self, owner: Owner) -> bool {
        self.seats.get(&owner.session_no).is_some_and(|seat| seat.owner.epoch > owner.epoch)
    }

    fn leave(&mut self, session: i64) {
        if self.seats.remove(&session).is_some() {
            for (_, profile) in &mut self.profiles {
                profile.sessions.retain(|&other| other != session);
            }
            self.profiles.retain(|(_, profile)| !profile.sessions.is_empty());
        }
    }

    fn room(&self, profile: &Profile) -> u64 {
        profile.sessions.iter().filter_map(|session| self.seats.get(session)).map(|seat| u64::from(seat.free())).sum()
    }

    /// Slots for so many new jobs of a lane, as far as there are, dealt out in turn.
    fn reserve(&mut self, lane: Lane, jobs: usize) -> Vec<Owner> {
        let mut owners = Vec::new();
        if self.lanes.maybe(lane) {
            return owners;
        }
        for (_, profile) in &mut self.profiles {
            if !profile.wants(lane) || profile.first(1, |lane| self.lanes.maybe(lane)).is_some() {
                continue;
            }
            profile.sessions.rotate_left(1);
            let seats = profile.sessions.iter().filter_map(|session| self.seats.get(session));
            let mut free: Vec<(Owner, u32)> = seats.map(|seat| (seat.owner, seat.free())).collect();
            while owners.len() < jobs && !free.is_empty() {
                free.retain_mut(|(owner, slots)| {
                    if *slots > 0 && owners.len() < jobs {
                        owners.push(*owner);
                        *slots -= 1;
                    }
                    *slots > 0
                });
            }
        }
        for &owner in &owners {
            if let Some(seat) = self.seat(owner) {
                seat.reserved += 1;
            }
        }
        owners
    }

    fn doubt(&mut self, slots: &[SlotRequest]) {
        for slot in slots {
            if let Some(seat) = self.seat(slot.owner) {
                seat.doubt();
            }
        }
    }

    fn unreserve(&mut self, slots: &[SlotRequest]) {
        for slot in slots {
            if let Some(seat) = self.seat(slot.owner) {
                seat.reserved = seat.reserved.saturating_sub(slot.slots.into());
            }
        }
    }

    fn plan(&mut self, now: Instant) -> Option<Plan> {
        let count = self.profiles.len();
        self.turn = self.turn.wrapping_add(1);
        let (at, lanes) = (0..count).map(|step| (self.turn.wrapping_add(step)) % count).find_map(|at| {
            let profile = &self.profiles[at].1;
            if self.room(profile) == 0 {
                return None;
            }
            Some((at, profile.first(LANES_PER_CLAIM, |lane| self.lanes.maybe(lane))?))
        })?;
        let slots = self.slots(at);
        let started: Vec<Started> = lanes.into_iter().map(|lane| self.lanes.start(lane, now)).collect();
        let max_bytes = i64::try_from(MAX_BATCH_BYTES).unwrap_or(i64::MAX);
        let lanes = started.iter().map(|started| (started.lane, started.from)).collect();
        Some(Plan { request: ClaimRequest { lanes, slots, max_bytes, alone: false }, started })
    }

    /// Free slots of a profile's sessions, up to a batch; the session served first today is served last tomorrow.
    fn slots(&mut self, profile: usize) -> Vec<SlotRequest> {
        let sessions = &mut self.profiles[profile].1.sessions;
        sessions.rotate_left(1);
        let mut left = u32::try_from(MAX_BATCH).unwrap_or(u32::MAX);
        let mut slots = Vec::new();
        for session in sessions.iter() {
            let Some(seat) = self.seats.get_mut(session) else { continue };
            let taken = seat.free().min(left);
            if taken > 0 {
                seat.reserved += u64::from(taken);
                slots.push(SlotRequest { owner: seat.owner, slots: taken });
                left -= taken;
            }
        }
        slots
    }

    fn granted(&mut self, plan: &Plan, claim: Claim, asked: Instant) -> Vec<(Claimed, Owner)> {
        if claim.room == 0 {
            // Other streams have taken all these sessions over, or they are dead. Their streams find out which; a claim for
            // them would find nothing again, at once.
            for slot in &plan.request.slots {
                if self.seat(slot.owner).is_some() {
                    self.leave(slot.owner.session_no);
                }
            }
            return Vec::new();
        }
        for &started in &plan.started {
            let highest = claim.jobs.iter().filter(|job| job.lane == started.lane).map(|job| job.position).max();
            self.lanes.end(started, highest, !claim.more, claim.now);
        }
        self.deliver(&plan.request.slots, claim.jobs, asked)
    }

    /// Hands new leases to the streams of their sessions. Returns those of sessions that have gone meanwhile.
    fn deliver(&mut self, slots: &[SlotRequest], jobs: Vec<Claimed>, asked: Instant) -> Vec<(Claimed, Owner)> {
        let mut by_session: HashMap<i64, Vec<Claimed>> = HashMap::new();
        for job in jobs {
            by_session.entry(job.session_no).or_default().push(job);
        }
        let mut orphans = Vec::new();
        for slot in slots {
            let Some(jobs) = by_session.remove(&slot.owner.session_no) else { continue };
            let count = jobs.len() as u64;
            let refused = match self.seat(slot.owner) {
                Some(seat) => match seat.grants.try_send(Claims { asked, jobs }) {
                    Ok(()) => {
                        seat.granted += count;
                        None
                    }
                    Err(refused) => Some(refused.into_inner().jobs),
                },
                None => Some(jobs),
            };
            orphans.extend(refused.into_iter().flatten().map(|job| (job, slot.owner)));
        }
        orphans
    }
}

#[cfg(test)]
mod tests;
