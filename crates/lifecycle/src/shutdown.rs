//! The two ways to be told to stop.

use tokio_util::sync::CancellationToken;

/// Tells a process to stop: softly first, then at once. Clones share the same tokens.
#[derive(Debug, Clone)]
pub struct Shutdown {
    soft: CancellationToken,
    hard: CancellationToken,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

impl Shutdown {
    /// Tokens that no signal fires; [`crate::run`] makes the ones that do.
    pub fn new() -> Self {
        let hard = CancellationToken::new();
        Self { soft: hard.child_token(), hard }
    }

    /// Fires when the process should take no new work and finish what runs. Fires with the hard one at the latest.
    pub fn soft(&self) -> &CancellationToken {
        &self.soft
    }

    /// Fires when the process should stop at once.
    pub fn hard(&self) -> &CancellationToken {
        &self.hard
    }

    /// Asks for a drain, as the first signal does.
    pub fn trigger(&self) {
        self.soft.cancel();
    }

    /// Stops at once, as the second signal does.
    pub fn trigger_hard(&self) {
        self.hard.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_leaves_hard_alone_and_hard_implies_soft() {
        let shutdown = Shutdown::new();
        shutdown.clone().trigger();
        assert!(shutdown.soft().is_cancelled() && !shutdown.hard().is_cancelled());

        let shutdown = Shutdown::new();
        shutdown.trigger_hard();
        assert!(shutdown.soft().is_cancelled() && shutdown.hard().is_cancelled());
    }
}
