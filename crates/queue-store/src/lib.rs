//! All SQL of Fencepost: each state transition is one function here, and nowhere else.
//!
//! Functions take a connection, so the caller owns the transaction. A change of state takes the value that proves the
//! right to make it: a [`Holder`] settles, an [`Owner`] claims, renews and takes back, a [`Warden`] reaps. Zero rows
//! changed means that the right was lost.

mod claim;
mod connect;
mod endings;
mod enqueue;
mod error;
mod hints;
mod inspect;
mod lease;
mod line;
mod lookout;
mod lookup;
mod migrate;
mod place;
mod promote;
mod reap;
mod registry;
mod scheduler;
mod session;
mod settle;
mod take_back;
mod tidy;
mod transaction;
mod within;

pub use claim::{Claim, ClaimRequest, Claimed, SlotRequest, claim};
pub use connect::{ANSWER_MARGIN, Store, StoreConfig};
pub use endings::{Ending, settle_endings};
pub use enqueue::{EnqueueRow, Enqueued, enqueue, enqueue_for};
pub use error::StoreError;
pub use hints::{Hint, HintListener, notify};
pub use inspect::{AttemptRecord, JobRecord, QueueCounts, expired_leases, job, queue_counts};
pub use line::Line;
pub use lookout::{Seen, look_out};
pub use lookup::{Past, look_up};
pub use migrate::{check_schema, migrate};
pub use place::{Death, Lows};
pub use promote::{Promoted, promote};
pub use reap::{
    Expired, ExpiredSession, Reaped, Warden, acquire_maintenance, expire_sessions, finish_pass, note_pass, reap_page,
    release_maintenance,
};
pub use registry::{Lane, Registered, Registry};
pub use scheduler::{SchedulerId, beat, register_scheduler, retire_scheduler};
pub use session::{
    HeldLease, Hello, OverdueLease, Owner, Renewal, Session, close_session, dead_sessions, held_leases, hello,
    overdue_leases, renew, still_held,
};
pub use settle::{Holder, SettledEffect, Succeeding, settle_succeeded};
pub use take_back::{Taken, Unheld, take_back};
pub use tidy::{Tidied, audit, tidy};
pub use transaction::Transaction;

pub use within::Conn;

/// The connection that every function here works on.
pub use sqlx::PgConnection;
