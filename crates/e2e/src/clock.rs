//! The machine's monotonic clock. Unlike other clocks of a process it is the same for all of them, so that a time written by
//! one can be compared by another.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the start of the machine.
pub(crate) fn nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is ever negative for this clock.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
