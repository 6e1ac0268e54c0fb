//! What there is.

use std::collections::VecDeque;

/// The protocol with its bounds, and the condition that is left out, if any.
#[derive(Debug, Clone, Copy)]
pub struct Protocol {
    /// How far it is explored.
    pub bounds: Bounds,
    /// What is not checked.
    pub gap: Option<Gap>,
}

/// How far the protocol is explored.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The last moment.
    pub ticks: u8,
    /// How long a renewal lasts, in moments.
    pub ttl: u8,
    /// Leases that are granted.
    pub grants: u8,
    /// Streams that the first worker opens.
    pub streams: u8,
    /// Streams and processes that break, in all.
    pub faults: u8,
}

/// A condition that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gap {
    /// A settlement is applied whatever its token is.
    SettleIgnoresToken,
    /// A claim is made for a dead session.
    ClaimIgnoresDeath,
    /// A dead session is renewed.
    RenewIgnoresDeath,
    /// A Hello takes a dead session up again.
    HelloIgnoresDeath,
    /// A lease is taken back whatever its token is.
    TakeBackIgnoresToken,
    /// A grant that was not acknowledged is taken back while its stream lives.
    TakeBackOnItsWay,
    /// A renewal takes back what it does not list, although that was sent and not acknowledged.
    RenewTakesWhatIsOnItsWay,
    /// A worker takes grants of a stream although a Hello that it said since may have been heard.
    StartAfterHello,
    /// A handler is started after the worker's deadline.
    StartIgnoresDeadline,
    /// The worker's deadline is counted from the answer instead of the question.
    DeadlineFromAnswer,
}

/// Workers, and schedulers.
pub const PEERS: usize = 2;

/// The worker that is there for the first one to lose the job to.
pub const RIVAL: usize = 1;

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The time.
    pub now: u8,
    /// The job.
    pub job: Job,
    /// Tokens handed out.
    pub tokens: u8,
    /// What the database knows of each worker's session.
    pub sessions: [Session; PEERS],
    /// What each scheduler keeps in memory.
    pub schedulers: [Scheduler; PEERS],
    /// The workers.
    pub workers: [Worker; PEERS],
    /// The streams that were opened, in order.
    pub streams: Vec<Stream>,
    /// Faults so far.
    pub faults: u8,
    /// Leases that schedulers have decided to take back, and have not yet.
    pub taking: Vec<Taking>,
    /// What must be remembered to judge.
    pub seen: Seen,
}

/// Of those so many are remembered; others are found again.
pub const MAX_TAKING: usize = 2;

/// A lease that is to be taken back as not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Taking {
    /// The scheduler that has decided it.
    pub scheduler: usize,
    /// The worker whose session has it.
    pub worker: usize,
    /// The session's epoch then.
    pub epoch: u8,
    /// The token.
    pub token: u8,
}

/// Where the job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Job {
    /// It waits.
    Ready,
    /// A session holds it.
    Leased {
        /// The token of the lease.
        token: u8,
        /// The worker whose session holds it.
        worker: usize,
    },
    /// It succeeded.
    Done,
}

/// A session's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Session {
    /// Whether it was ever opened.
    pub open: bool,
    /// Whether it was declared dead.
    pub dead: bool,
    /// Raised by each Hello.
    pub epoch: u8,
    /// The scheduler of the latest Hello.
    pub owner: usize,
    /// When it may be declared dead.
    pub expires: u8,
}

/// A scheduler's memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Scheduler {
    /// By worker, the stream that it serves.
    pub seats: [Option<Seat>; PEERS],
}

/// What a scheduler knows of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seat {
    /// Which stream.
    pub stream: usize,
    /// The epoch that it got.
    pub epoch: u8,
    /// A grant that was sent and not acknowledged.
    pub sent: Option<u8>,
}

/// A worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Worker {
    /// Whether it lives.
    pub alive: bool,
    /// The stream that it was welcomed on.
    pub stream: Option<usize>,
    /// The stream that it opens.
    pub opening: Option<usize>,
    /// Whether a Hello was said since the stream was welcomed, which may have been heard: nothing more is started from it.
    pub sealed: bool,
    /// Whether the last heartbeat on the stream was answered, or none was sent yet.
    pub renewed: bool,
    /// No handler may start or run from here on.
    pub deadline: u8,
    /// What it holds.
    pub held: Option<Held>,
}

/// A lease as its worker knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Held {
    /// The token.
    pub token: u8,
    /// Whether its handler has ended; then the result waits for its acknowledgement.
    pub ended: bool,
}

/// One stream: between a worker and a scheduler, in two directions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Stream {
    /// The worker.
    pub worker: usize,
    /// The scheduler.
    pub scheduler: usize,
    /// Whether it is broken. What was on its way is lost.
    pub broken: bool,
    /// On the way to the scheduler.
    pub up: VecDeque<Up>,
    /// On the way to the worker.
    pub down: VecDeque<Down>,
}

/// What a worker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Up {
    /// Opens or takes up the session.
    Hello {
        /// The lease that it holds.
        listed: Option<u8>,
        /// When it was said.
        at: u8,
    },
    /// A grant arrived.
    Ack {
        /// Its token.
        token: u8,
    },
    /// The session lives.
    Heartbeat {
        /// The lease that it holds.
        listed: Option<u8>,
        /// When it was said.
        at: u8,
    },
    /// The handler succeeded.
    Settle {
        /// The token of its lease.
        token: u8,
    },
}

/// What a scheduler says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Down {
    /// The session is served.
    Welcome {
        /// A listed lease that is not held.
        lost: Option<u8>,
        /// When the Hello was said.
        at: u8,
    },
    /// The session is dead.
    Expired,
    /// The scheduler says no more: a grant was not acknowledged.
    Ended,
    /// A lease.
    Grant {
        /// Its token.
        token: u8,
    },
    /// The heartbeat is committed.
    Renewed {
        /// A listed lease that is not held.
        lost: Option<u8>,
        /// When the heartbeat was said.
        at: u8,
    },
    /// The settlement is committed, or refused for good.
    Settled {
        /// Its token.
        token: u8,
    },
}

/// Something that must not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wrong {
    /// The job ended under a token that was not that of its lease, or by another session.
    EndedByAnother,
    /// A handler was started under a lease that had ended.
    StartedLate,
    /// A handler was started, and its lease was taken back as not delivered.
    StartedUndelivered,
    /// A lease was given to a dead session.
    GrantedToTheDead,
    /// A session that was dead lived again.
    Revived,
}

/// A set of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tokens(u8);

impl Tokens {
    /// Adds one.
    pub fn insert(&mut self, token: u8) {
        self.0 |= 1 << token;
    }

    /// Whether one is in it.
    pub fn has(self, token: u8) -> bool {
        self.0 & 1 << token != 0
    }

    /// Whether none is.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What must be remembered to judge.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Seen {
    /// How often the job ended.
    pub ends: u8,
    /// The first thing that must not be.
    pub wrong: Option<Wrong>,
    /// Tokens under which a handler was started.
    pub started: Tokens,
    /// Tokens that were taken back as not delivered.
    pub undelivered: Tokens,
    /// A lease was lost with its session.
    pub losses: u8,
    /// A settlement was refused.
    pub refused: bool,
}
