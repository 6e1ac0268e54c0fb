//! When a failed call may be sent again, and after what pause: pure.

use std::error::Error;
use std::time::Duration;

use tonic::{Code, Status};

use crate::reason::was_never_sent;

/// Tries of one call in all.
pub(crate) const MAX_TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Whether a call does harm when it is carried out twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It does none: a read, or every job in it has an idempotency key.
    Harmless,
    /// It does: only what never left this process is sent again.
    OnlyIfUnsent,
}

/// What to do after a failed try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Send it again, elsewhere if there is an elsewhere.
    Again,
    /// It was answered; the answer stands.
    Answered,
    /// It may have been carried out, and must not be sent again.
    Unknown,
}

/// Judges a failed try.
pub(crate) fn judge(status: &Status, repeat: Repeat) -> Verdict {
    if was_never_sent(status) {
        return Verdict::Again;
    }
    // A status with a source was made on this side of the wire: the connection broke.
    let lost = status.source().is_some() || matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded);
    match (lost, repeat) {
        (false, _) => Verdict::Answered,
        (true, Repeat::Harmless) => Verdict::Again,
        (true, Repeat::OnlyIfUnsent) => Verdict::Unknown,
    }
}

/// The pause before try `tries + 1`; `chance` is uniform in 0..1.
pub(crate) fn pause(tries: u32, chance: f64) -> Duration {
    let grown = FIRST_PAUSE.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(LONGEST_PAUSE);
    // Half of it is certain, so that a scheduler that restarts is given time; half is chance, so that clients spread.
    grown.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tonic::{ConnectError, Status};

    use super::{LONGEST_PAUSE, Repeat, Verdict, judge, pause};

    #[test]
    fn what_may_have_been_done_is_only_repeated_where_harmless() {
        for status in [Status::unavailable("gone"), Status::deadline_exceeded("late")] {
            assert_eq!(judge(&status, Repeat::Harmless), Verdict::Again);
            assert_eq!(judge(&status, Repeat::OnlyIfUnsent), Verdict::Unknown);
        }
        let broken = Status::from_error(Box::new(std::io::Error::other("reset")));
        assert_eq!(judge(&broken, Repeat::OnlyIfUnsent), Verdict::Unknown);
        assert_eq!(judge(&broken, Repeat::Harmless), Verdict::Again);
    }

    #[test]
    fn what_never_left_is_always_repeated() {
        let unsent = Status::from_error(Box::new(ConnectError("refused".into())));
        assert_eq!(judge(&unsent, Repeat::OnlyIfUnsent), Verdict::Again);
    }

    #[test]
    fn an_answer_is_never_repeated() {
        for status in [Status::invalid_argument("queue"), Status::already_exists("key"), Status::internal("bug")] {
            assert_eq!(judge(&status, Repeat::Harmless), Verdict::Answered);
        }
    }

    #[test]
    fn pauses_grow_and_are_bounded() {
        assert_eq!(pause(1, 0.0), Duration::from_millis(50));
        assert_eq!(pause(2, 1.0), Duration::from_millis(200));
        assert_eq!(pause(u32::MAX, 1.0), LONGEST_PAUSE);
    }
}
