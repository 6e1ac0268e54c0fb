//! Every fixed bound of the system, by name.

use std::time::Duration;

/// Characters of a queue's, kind's or worker's name.
pub const MAX_NAME_CHARS: usize = 128;
/// Characters of an idempotency key. With it a btree entry stays far below PostgreSQL's 2,704 bytes.
pub const MAX_KEY_CHARS: usize = 256;
/// Bytes of a payload, a result or an effect, unless configured otherwise.
pub const DEFAULT_MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// Largest value that the payload bound may be configured to: a gRPC message must hold it with room to spare.
pub const MAX_PAYLOAD_BYTES: usize = 16 << 20;
/// Headers of one job.
pub const MAX_HEADERS: usize = 64;
/// Bytes of all headers of one job, names and values.
pub const MAX_HEADER_BYTES: usize = 16 << 10;
/// Characters of an error text; longer ones are cut.
pub const MAX_ERROR_CHARS: usize = 1_000;
/// Characters of an error code; longer ones are cut.
pub const MAX_CODE_CHARS: usize = 128;
/// Bytes of a W3C traceparent: version 00 has 55; later ones may be longer.
pub const MAX_TRACEPARENT_BYTES: usize = 128;
/// Jobs of one batch request and rows of one statement.
pub const MAX_BATCH: usize = 1_000;
/// Payload bytes of one batch request, one statement or one claim.
pub const MAX_BATCH_BYTES: usize = 16 << 20;
/// Follow-up jobs of one settlement.
pub const MAX_FOLLOW_UPS: usize = 100;
/// Queues that one worker listens to.
pub const MAX_SESSION_QUEUES: usize = 64;
/// Kinds that one worker has handlers for.
pub const MAX_SESSION_KINDS: usize = 256;
/// Slots of one worker, so leases of one session.
pub const MAX_CAPACITY: u32 = 10_000;
/// Queues of one installation.
pub const MAX_QUEUES: i64 = 10_000;
/// Kinds of one installation.
pub const MAX_KINDS: i64 = 10_000;
/// Lanes (queue, priority, kind) of one installation.
pub const MAX_LANES: i64 = 50_000;
/// Largest number of attempts or lease losses that a policy may allow.
pub const MAX_ATTEMPTS_BOUND: u32 = 10_000;
/// Undelivered grants in a row before a job is dead: it may be what breaks the delivery.
pub const MAX_UNDELIVERED: u32 = 10;
/// Longest delay before a first run.
pub const MAX_START_DELAY: Duration = Duration::from_hours(10 * 366 * 24);
/// Longest timeout, back-off, retry-after or snooze.
pub const MAX_WAIT: Duration = Duration::from_hours(30 * 24);
/// Shortest job timeout.
pub const MIN_TIMEOUT: Duration = Duration::from_millis(1);
/// A job's timeout where neither it nor its queue says otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(20);
/// Attempts that the history of a job shows.
pub const MAX_HISTORY: i64 = 1_000;
/// Largest growth of the back-off from one attempt to the next.
pub const MAX_BACKOFF_FACTOR: f64 = 100.0;
