//! What a worker is set to.

use std::time::Duration;

use client::ConnectOptions;
use queue_core::{QueueName, WorkerName};

use crate::Timing;

/// Bytes of one message that the worker takes, unless set otherwise.
pub const DEFAULT_MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Smallest bound on a message: a payload of any size and what belongs to it must fit.
pub const MIN_MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Largest bound on a message: 16 MiB of payload with room to spare.
pub const MAX_MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Longest drain grace that makes sense to be asked for.
pub const MAX_DRAIN_GRACE: Duration = Duration::from_hours(24);

/// Checked by the builder.
pub(crate) struct Settings {
    pub(crate) connect: ConnectOptions,
    pub(crate) name: WorkerName,
    pub(crate) queues: Vec<QueueName>,
    pub(crate) concurrency: u32,
    pub(crate) drain_grace: Duration,
    pub(crate) cancel_grace: Duration,
    pub(crate) timing: Timing,
    pub(crate) max_message_bytes: usize,
    pub(crate) build: String,
}
