//! Where a job is, and how an attempt ended.

/// The state of a job. Which table holds it says which; it is in exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobState {
    /// Waits for its due time.
    Scheduled,
    /// Waits for a free slot.
    Ready,
    /// Granted under a lease.
    Leased,
    /// Ended well. Final.
    Succeeded,
    /// Budget used up or failed for good. Final, unless redriven.
    Dead,
    /// Ended by an operator. Final.
    Cancelled,
}

/// How one attempt ended. The text form is what the attempt log stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttemptEnd {
    /// The handler succeeded.
    Succeeded,
    /// The handler failed. Uses one attempt.
    Failed,
    /// The worker died or fell silent. Uses one attempt and one lease loss.
    Lost,
    /// The worker gave the job back. Uses nothing.
    Released,
    /// The handler asked for a later call. Uses nothing.
    Snoozed,
    /// The grant was never acknowledged. Uses nothing, but is bounded in a row.
    Undelivered,
    /// The lease outlived the job's timeout by far. Uses one attempt.
    TimedOut,
}

impl AttemptEnd {
    const NAMES: [(Self, &'static str); 7] = [
        (Self::Succeeded, "succeeded"),
        (Self::Failed, "failed"),
        (Self::Lost, "lost"),
        (Self::Released, "released"),
        (Self::Snoozed, "snoozed"),
        (Self::Undelivered, "undelivered"),
        (Self::TimedOut, "timed_out"),
    ];

    /// The text form.
    pub fn as_str(self) -> &'static str {
        Self::NAMES.iter().find(|(end, _)| *end == self).map_or("", |(_, name)| name)
    }

    /// The end that a text form means.
    pub fn parse(text: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, name)| *name == text).map(|(end, _)| *end)
    }

    /// Whether the holder of the lease reported this end itself, so that its repetition is a duplicate and not stale.
    pub fn is_settlement(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Released | Self::Snoozed)
    }
}

impl JobState {
    const NAMES: [(Self, &'static str); 6] = [
        (Self::Scheduled, "scheduled"),
        (Self::Ready, "ready"),
        (Self::Leased, "leased"),
        (Self::Succeeded, "succeeded"),
        (Self::Dead, "dead"),
        (Self::Cancelled, "cancelled"),
    ];

    /// The text form, as the view `job_status` shows it.
    pub fn as_str(self) -> &'static str {
        Self::NAMES.iter().find(|(state, _)| *state == self).map_or("", |(_, name)| name)
    }

    /// The state that a text form means.
    pub fn parse(text: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, name)| *name == text).map(|(state, _)| *state)
    }
}
