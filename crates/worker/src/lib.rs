//! Runs jobs: handlers by kind, in bounded slots, under fenced leases.
//!
//! ```no_run
//! use worker::{Context, HandlerError, Success, Worker};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let worker = Worker::builder()
//!     .connect(client::ConnectOptions::new(["http://127.0.0.1:7878"]))
//!     .queues(["high", "low"])
//!     .handler("mail.send", |job: Context| async move {
//!         if job.payload().is_empty() {
//!             return Err(HandlerError::permanent("empty", "there is nothing to send"));
//!         }
//!         Ok(Success { result: Some("sent".into()), ..Success::default() })
//!     })
//!     .build()?;
//! let stop = tokio_util::sync::CancellationToken::new();
//! worker.run(stop).await?;
//! # Ok(())
//! # }
//! ```
//!
//! **Delivery is at least once.** A handler may run again after a crash or a lost lease. What it returns as
//! [`Success::effect`] is committed once per idempotency key; for effects elsewhere it has the key and the fencing token.
//!
//! **A lost lease** fires the handler's [`Context::cancellation`]; what it returns is refused. The link to the schedulers
//! runs on a thread of its own, so a handler that blocks its thread does not lose its lease by that.
//!
//! The [`Pool`] is usable on its own, without a scheduler.

mod attempt;
mod builder;
mod clock;
mod context;
mod dialer;
mod ending;
mod handler;
mod inbound;
mod link;
mod metrics;
mod outbound;
mod pool;
mod runner;
mod settings;
mod stream;
mod table;
mod timing;
mod worker;

pub use attempt::CancelReason;
pub use builder::{DEFAULT_CONCURRENCY, WorkerBuilder};
pub use context::Context;
pub use handler::HandlerError;
pub use pool::{MAX_POOL_QUEUE, MAX_RUNNERS, Pool, PoolReport, SubmitError, Submitted, WhenFull};
pub use queue_core::{Failure, NewJob, Success};
pub use settings::{DEFAULT_MAX_MESSAGE_BYTES, MAX_DRAIN_GRACE, MAX_MAX_MESSAGE_BYTES, MIN_MAX_MESSAGE_BYTES};
pub use timing::{DEFAULT_CANCEL_GRACE, DEFAULT_DRAIN_GRACE, Timing};
pub use worker::{Error, Report, Stop, Worker};
