//! What may happen next.

use crate::state::{Down, Gap, Held, Job, MAX_TAKING, PEERS, Protocol, RIVAL, Seat, State, Stream, Taking, Up, Wrong};

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Time passes.
    Tick,
    /// A worker opens a stream to a scheduler; it may have another one still.
    Connect {
        /// The worker.
        worker: usize,
        /// The scheduler.
        scheduler: usize,
    },
    /// A scheduler handles the next message of a stream.
    Up(usize),
    /// A worker handles the next message of a stream.
    Down(usize),
    /// A scheduler claims the job for a worker.
    Claim {
        /// The scheduler.
        scheduler: usize,
        /// The worker.
        worker: usize,
    },
    /// A scheduler ends a stream on which a grant was not acknowledged.
    EndStream {
        /// The scheduler.
        scheduler: usize,
        /// The worker.
        worker: usize,
    },
    /// A worker says what it holds.
    Heartbeat(usize),
    /// A worker sends the result of a handler that has ended, by itself or as it was told to, or sends it again.
    Settle(usize),
    /// A lease is taken back as not delivered, as was decided.
    TakeBack,
    /// A lease is taken back from a worker that lives, because its job has run for too long.
    Overdue,
    /// The database declares a worker's session dead.
    Expire(usize),
    /// A lease of a dead session is taken back.
    Reap(usize),
    /// A stream breaks, and its worker notices it; its scheduler may go on to claim for it.
    Break(usize),
    /// A scheduler crashes and starts again with nothing in memory.
    CrashScheduler(usize),
    /// A worker crashes for good.
    CrashWorker(usize),
}

impl Protocol {
    /// Everything that may be tried; what cannot happen changes nothing.
    pub(crate) fn candidates(state: &State) -> Vec<Action> {
        use Action::{
            Break, Claim, Connect, CrashScheduler, CrashWorker, Down, EndStream, Expire, Heartbeat, Overdue, Reap,
            Settle, TakeBack, Tick, Up,
        };
        // The rival is there to want the job, too: it connects once, lives as long as its session, and where does not matter.
        let mut all =
            vec![Tick, TakeBack, Overdue, Heartbeat(0), CrashWorker(0), Connect { worker: RIVAL, scheduler: 0 }];
        for peer in 0..PEERS {
            all.extend([
                Settle(peer),
                Expire(peer),
                Reap(peer),
                CrashScheduler(peer),
                Connect { worker: 0, scheduler: peer },
            ]);
            for scheduler in 0..PEERS {
                all.extend([Claim { scheduler, worker: peer }, EndStream { scheduler, worker: peer }]);
            }
        }
        for stream in 0..state.streams.len() {
            all.extend([Up(stream), Down(stream)]);
            all.extend((state.streams[stream].worker != RIVAL).then_some(Break(stream)));
        }
        all
    }

    /// What a step leads to; `None` if it cannot be taken.
    pub(crate) fn step(self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.apply(&mut next, action)?;
        (next != *state).then_some(next)
    }

    fn has(self, gap: Gap) -> bool {
        self.gap == Some(gap)
    }

    fn apply(self, state: &mut State, action: Action) -> Option<()> {
        match action {
            Action::Tick => {
                (state.now < self.bounds.ticks).then_some(())?;
                state.now += 1;
            }
            Action::Connect { worker, scheduler } => self.connect(state, worker, scheduler)?,
            Action::Up(stream) => {
                let message = state.streams[stream].up.pop_front()?;
                self.up(state, stream, message);
            }
            Action::Down(stream) => {
                let message = state.streams[stream].down.pop_front()?;
                self.down(state, stream, message);
            }
            Action::Claim { scheduler, worker } => self.claim(state, scheduler, worker)?,
            Action::EndStream { scheduler, worker } => self.end_stream(state, scheduler, worker)?,
            Action::Heartbeat(worker) => heartbeat(state, worker)?,
            Action::Settle(worker) => settle(state, worker)?,
            Action::TakeBack => {
                (!state.taking.is_empty()).then_some(())?;
                let taking = state.taking.remove(0);
                self.take_back(state, taking);
            }
            Action::Overdue => {
                let Job::Leased { token, .. } = state.job else { return None };
                // Streams do not hold a grant back for as long as that takes.
                state.seen.started.has(token).then_some(())?;
                self.fault(state)?;
                state.job = Job::Ready;
            }
            Action::Expire(worker) => {
                let session = &mut state.sessions[worker];
                (session.open && state.now >= session.expires).then_some(())?;
                session.dead = true;
            }
            Action::Reap(worker) => {
                let held = matches!(state.job, Job::Leased { worker: holder, .. } if holder == worker);
                (held && state.sessions[worker].dead).then_some(())?;
                state.job = Job::Ready;
                state.seen.losses += 1;
            }
            Action::Break(stream) => {
                (!state.streams[stream].broken).then_some(())?;
                self.fault(state)?;
                break_off(state, stream);
            }
            Action::CrashScheduler(scheduler) => {
                self.fault(state)?;
                state.schedulers[scheduler].seats = [None; PEERS];
                for stream in 0..state.streams.len() {
                    if state.streams[stream].scheduler == scheduler {
                        break_off(state, stream);
                    }
                }
            }
            Action::CrashWorker(worker) => {
                state.workers[worker].alive.then_some(())?;
                self.fault(state)?;
                retire(state, worker);
            }
        }
        Some(())
    }

    fn fault(self, state: &mut State) -> Option<()> {
        (state.faults < self.bounds.faults).then_some(())?;
        state.faults += 1;
        Some(())
    }

    fn connect(self, state: &mut State, worker: usize, scheduler: usize) -> Option<()> {
        let me = &mut state.workers[worker];
        let opened = state.streams.iter().filter(|stream| stream.worker == worker).count();
        let allowed = opened < if worker == RIVAL { 1 } else { usize::from(self.bounds.streams) };
        (me.alive && me.opening.is_none() && allowed).then_some(())?;
        (me.opening, me.sealed) = (Some(state.streams.len()), true);
        let hello = Up::Hello { listed: me.held.map(|held| held.token), at: state.now };
        let (up, down) = ([hello].into(), [].into());
        state.streams.push(Stream { worker, scheduler, broken: false, up, down });
        Some(())
    }

    fn claim(self, state: &mut State, scheduler: usize, worker: usize) -> Option<()> {
        let seat = state.schedulers[scheduler].seats[worker].as_mut()?;
        let session = state.sessions[worker];
        let served = session.owner == scheduler && (session.epoch == seat.epoch);
        let lives = !session.dead || self.has(Gap::ClaimIgnoresDeath);
        let free = state.job == Job::Ready && seat.sent.is_none() && state.tokens < self.bounds.grants;
        (served && lives && free).then_some(())?;
        state.tokens += 1;
        let token = state.tokens;
        state.job = Job::Leased { token, worker };
        seat.sent = Some(token);
        let stream = &mut state.streams[seat.stream];
        if !stream.broken {
            stream.down.push_back(Down::Grant { token });
        }
        state.wrong_if(session.dead, Wrong::GrantedToTheDead);
        Some(())
    }

    fn end_stream(self, state: &mut State, scheduler: usize, worker: usize) -> Option<()> {
        let seat = state.schedulers[scheduler].seats[worker]?;
        let token = seat.sent?;
        if self.has(Gap::TakeBackOnItsWay) {
            state.schedulers[scheduler].seats[worker].as_mut()?.sent = None;
            state.take(Taking { scheduler, worker, epoch: seat.epoch, token });
            return Some(());
        }
        state.schedulers[scheduler].seats[worker] = None;
        let stream = &mut state.streams[seat.stream];
        if !stream.broken {
            stream.down.push_back(Down::Ended);
        }
        Some(())
    }

    /// The database's part of taking a lease back as not delivered.
    fn take_back(self, state: &mut State, Taking { scheduler, worker, epoch, token }: Taking) {
        let Job::Leased { token: current, worker: holder } = state.job else { return };
        let session = state.sessions[worker];
        let served = session.owner == scheduler && session.epoch == epoch;
        if holder == worker && served && (current == token || self.has(Gap::TakeBackIgnoresToken)) {
            state.job = Job::Ready;
            state.seen.undelivered.insert(current);
            state.wrong_if(state.seen.started.has(current), Wrong::StartedUndelivered);
        }
    }

    /// A scheduler handles a message.
    fn up(self, state: &mut State, stream: usize, message: Up) {
        let Stream { worker, scheduler, .. } = state.streams[stream];
        if let Up::Hello { listed, at } = message {
            return self.hello(state, stream, listed, at);
        }
        let Some(seat) = state.schedulers[scheduler].seats[worker].as_mut().filter(|seat| seat.stream == stream) else {
            return;
        };
        match message {
            Up::Ack { token } => seat.sent = seat.sent.filter(|&sent| sent != token),
            Up::Heartbeat { listed, at } => {
                let seat = *seat;
                self.renew(state, seat, (scheduler, worker), listed, at);
            }
            Up::Settle { token } => self.settled(state, stream, token),
            Up::Hello { .. } => {}
        }
    }

    fn hello(self, state: &mut State, stream: usize, listed: Option<u8>, at: u8) {
        let Stream { worker, scheduler, .. } = state.streams[stream];
        let session = &mut state.sessions[worker];
        if session.dead && !self.has(Gap::HelloIgnoresDeath) {
            state.streams[stream].down.push_back(Down::Expired);
            return;
        }
        let revived = std::mem::replace(&mut session.dead, false);
        session.open = true;
        session.epoch += 1;
        session.owner = scheduler;
        session.expires = state.now + self.bounds.ttl;
        let epoch = session.epoch;
        let seat = Seat { stream, epoch, sent: None };
        state.schedulers[scheduler].seats[worker] = Some(seat);
        state.wrong_if(revived, Wrong::Revived);
        let held = held(state, worker);
        if let Some(token) = held.filter(|&token| listed != Some(token)) {
            state.take(Taking { scheduler, worker, epoch, token });
        }
        let lost = listed.filter(|&token| held != Some(token));
        state.streams[stream].down.push_back(Down::Welcome { lost, at });
    }

    fn renew(self, state: &mut State, seat: Seat, (scheduler, worker): (usize, usize), listed: Option<u8>, at: u8) {
        let session = &mut state.sessions[worker];
        if session.owner != scheduler || session.epoch != seat.epoch {
            // Superseded: the stream ends.
            state.schedulers[scheduler].seats[worker] = None;
            return sever(&mut state.streams[seat.stream]);
        }
        if session.dead && !self.has(Gap::RenewIgnoresDeath) {
            return state.streams[seat.stream].down.push_back(Down::Expired);
        }
        let revived = std::mem::replace(&mut session.dead, false);
        session.expires = state.now + self.bounds.ttl;
        state.wrong_if(revived, Wrong::Revived);
        let held = held(state, worker);
        let awaited = |token| seat.sent == Some(token) && !self.has(Gap::RenewTakesWhatIsOnItsWay);
        if let Some(token) = held.filter(|&token| listed != Some(token) && !awaited(token)) {
            state.take(Taking { scheduler, worker, epoch: seat.epoch, token });
        }
        let lost = listed.filter(|&token| held != Some(token));
        state.streams[seat.stream].down.push_back(Down::Renewed { lost, at });
    }

    fn settled(self, state: &mut State, stream: usize, token: u8) {
        let worker = state.streams[stream].worker;
        let applied = match state.job {
            Job::Leased { token: current, worker: holder } => {
                let own = (current == token || self.has(Gap::SettleIgnoresToken)) && holder == worker;
                state.wrong_if(own && (current, holder) != (token, worker), Wrong::EndedByAnother);
                own
            }
            Job::Ready | Job::Done => false,
        };
        if applied {
            state.job = Job::Done;
            state.seen.ends += 1;
        } else {
            state.seen.refused = true;
        }
        state.streams[stream].down.push_back(Down::Settled { token });
    }

    /// A worker handles a message.
    fn down(self, state: &mut State, stream: usize, message: Down) {
        let worker = state.streams[stream].worker;
        let now = state.now;
        let me = &mut state.workers[worker];
        let from = |at: u8| if self.gap == Some(Gap::DeadlineFromAnswer) { now } else { at };
        match message {
            Down::Welcome { lost, at } if me.opening == Some(stream) => {
                let old = me.stream.replace(stream);
                (me.opening, me.renewed, me.sealed) = (None, true, false);
                me.deadline = me.deadline.max(from(at) + self.bounds.ttl);
                me.held = me.held.filter(|held| lost != Some(held.token));
                if let Some(old) = old {
                    sever(&mut state.streams[old]);
                }
            }
            Down::Expired if me.opening == Some(stream) || me.stream == Some(stream) => retire(state, worker),
            _ if me.stream != Some(stream) => {}
            Down::Ended => {
                me.stream = None;
                sever(&mut state.streams[stream]);
            }
            Down::Grant { token } => {
                let in_time = now < me.deadline || self.gap == Some(Gap::StartIgnoresDeadline);
                // A Hello that is on its way or was heard does not list it, so it must not run.
                let sealed = me.opening.is_some() || me.sealed && !self.has(Gap::StartAfterHello);
                if me.held.is_none() && !sealed && in_time {
                    me.held = Some(Held { token, ended: false });
                    state.streams[stream].up.push_back(Up::Ack { token });
                    state.seen.started.insert(token);
                    state.wrong_if(state.job != Job::Leased { token, worker }, Wrong::StartedLate);
                    state.wrong_if(state.seen.undelivered.has(token), Wrong::StartedUndelivered);
                }
            }
            Down::Renewed { lost, at } => {
                me.deadline = me.deadline.max(from(at) + self.bounds.ttl);
                me.held = me.held.filter(|held| held.ended || lost != Some(held.token));
                me.renewed = true;
            }
            Down::Settled { token } => me.held = me.held.filter(|held| held.token != token),
            Down::Welcome { .. } | Down::Expired => {}
        }
    }
}

impl State {
    /// A lease is to be taken back, if there is room to remember it.
    fn take(&mut self, taking: Taking) {
        if self.taking.len() < MAX_TAKING {
            self.taking.push(taking);
        }
    }

    /// Notes something that must not be, unless something else was noted before.
    fn wrong_if(&mut self, is: bool, wrong: Wrong) {
        self.seen.wrong = self.seen.wrong.or(is.then_some(wrong));
    }
}

/// What the database says a worker's session holds.
fn held(state: &State, worker: usize) -> Option<u8> {
    match state.job {
        Job::Leased { token, worker: holder } if holder == worker => Some(token),
        _ => None,
    }
}

fn heartbeat(state: &mut State, worker: usize) -> Option<()> {
    let me = &mut state.workers[worker];
    let stream = me.stream.filter(|&stream| !state.streams[stream].broken)?;
    // One is under way at a time; each but the first follows the answer to the one before.
    me.renewed.then_some(())?;
    me.renewed = false;
    let listed = me.held.map(|held| held.token);
    state.streams[stream].up.push_back(Up::Heartbeat { listed, at: state.now });
    Some(())
}

fn settle(state: &mut State, worker: usize) -> Option<()> {
    let me = &mut state.workers[worker];
    let (stream, held) = (me.stream?, me.held.as_mut()?);
    held.ended = true;
    let Stream { up, down, .. } = &mut state.streams[stream];
    let message = Up::Settle { token: held.token };
    let under_way = up.contains(&message) || down.contains(&Down::Settled { token: held.token });
    (!under_way).then_some(())?;
    up.push_back(message);
    Some(())
}

/// A stream breaks, and its worker learns of it.
fn break_off(state: &mut State, stream: usize) {
    sever(&mut state.streams[stream]);
    let me = &mut state.workers[state.streams[stream].worker];
    me.stream = me.stream.filter(|&other| other != stream);
    me.opening = me.opening.filter(|&other| other != stream);
}

/// A worker is gone for good.
fn retire(state: &mut State, worker: usize) {
    let me = &mut state.workers[worker];
    me.alive = false;
    (me.held, me.stream, me.opening) = (None, None, None);
    state.streams.iter_mut().filter(|stream| stream.worker == worker).for_each(sever);
}

fn sever(stream: &mut Stream) {
    stream.broken = true;
    stream.up.clear();
    stream.down.clear();
}
