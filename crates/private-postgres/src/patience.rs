//! Bounded waiting: the one place with a clock and a pause.

use std::{
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

/// Between two looks at a process that has no event to wait for.
const PAUSE: Duration = Duration::from_millis(10);

/// Asks until there is an answer or the time is over; `None` then. An error ends the waiting at once.
pub(crate) fn until<T>(
    bound: Duration,
    mut ask: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<Option<T>> {
    let started = now();
    loop {
        if let Some(answer) = ask()? {
            return Ok(Some(answer));
        }
        if started.elapsed() >= bound {
            return Ok(None);
        }
        pause();
    }
}

/// Waits for a child to exit, but not longer than the bound.
pub(crate) fn exit_of(child: &mut Child, bound: Duration) -> Option<ExitStatus> {
    until(bound, || Ok(child.try_wait()?)).ok().flatten()
}

#[expect(clippy::disallowed_methods, reason = "bounds a wait in a synchronous crate; compared with nothing stored")]
fn now() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "readiness is a line in a file and an exit has no portable event with a bound"
)]
fn pause() {
    std::thread::sleep(PAUSE);
}
