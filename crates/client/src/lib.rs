//! For programs that enqueue jobs, and for everything else that talks to a scheduler.
//!
//! ```no_run
//! use client::{Client, ConnectOptions};
//! use queue_core::{KindName, NewJob, QueueName};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(&ConnectOptions::new(["http://127.0.0.1:7878"])).await?;
//! let job = NewJob::new(QueueName::new("mail")?, KindName::new("send_welcome")?, "{\"user\":7}");
//! let enqueued = client.enqueue(job.with_key("welcome-7")?).await?;
//! println!("job {} ({})", enqueued.job_id, if enqueued.duplicate { "was there" } else { "new" });
//! # Ok(())
//! # }
//! ```
//!
//! A call is sent again only where that cannot do harm: reads, jobs with an idempotency key, and calls that provably
//! never left this process. A job without a key whose answer was lost is reported as [`Error::OutcomeUnknown`].

mod client;
mod enqueue;
mod error;
mod inspect;
mod maintenance;
mod options;
mod reason;
mod repeat;
mod secret;
mod work;

pub use client::Client;
pub use enqueue::Enqueued;
pub use error::Error;
pub use options::{ConnectOptions, DEFAULT_CALL_TIMEOUT, MAX_ADDRESSES};
pub use queue_proto::v1;
pub use reason::{advised_reason, reason};
pub use secret::Secret;
pub use work::{Connection, WorkAddress};
