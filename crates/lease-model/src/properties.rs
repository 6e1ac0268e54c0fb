//! The protocol as a model, and what must hold of it.

use stateright::{Model, Property};

use crate::{
    actions::Action,
    state::{Job, PEERS, Protocol, Scheduler, Seen, Session, State, Worker, Wrong},
};

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let session = Session { open: false, dead: false, epoch: 0, owner: 0, expires: 0 };
        let worker =
            Worker { alive: true, stream: None, opening: None, sealed: false, renewed: true, deadline: 0, held: None };
        vec![State {
            now: 0,
            job: Job::Ready,
            tokens: 0,
            sessions: [session; PEERS],
            schedulers: [Scheduler::default(), Scheduler::default()],
            workers: [worker; PEERS],
            streams: Vec::new(),
            faults: 0,
            taking: Vec::new(),
            seen: Seen::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // What is wrong stays wrong.
        if state.seen.wrong.is_none() {
            actions.extend(Self::candidates(state));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        self.step(state, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a job ends once", |_, state: &State| state.seen.ends <= 1),
            Property::always("a job ends under its own lease", |_, state| is_not(state, Wrong::EndedByAnother)),
            Property::always("a handler starts under a lease that is held", |_, state| {
                is_not(state, Wrong::StartedLate)
            }),
            Property::always("what was not delivered was not started", |_, state| {
                is_not(state, Wrong::StartedUndelivered)
            }),
            Property::always("the dead get no lease", |_, state| is_not(state, Wrong::GrantedToTheDead)),
            Property::always("the dead stay dead", |_, state| is_not(state, Wrong::Revived)),
            Property::sometimes("a job ends", |_, state: &State| state.job == Job::Done),
            Property::sometimes("a lease is lost and the job ends after all", |_, state: &State| {
                state.seen.losses > 0 && state.job == Job::Done
            }),
            Property::sometimes("a stale settlement is refused", |_, state: &State| state.seen.refused),
            Property::sometimes("a grant that did not arrive goes back", |_, state: &State| {
                !state.seen.undelivered.is_empty()
            }),
            Property::sometimes("a session changes hands with its lease", |_, state: &State| {
                let moved = |worker: usize| state.sessions[worker].epoch > 1 && state.workers[worker].held.is_some();
                (0..PEERS).any(moved)
            }),
        ]
    }
}

fn is_not(state: &State, wrong: Wrong) -> bool {
    state.seen.wrong != Some(wrong)
}
