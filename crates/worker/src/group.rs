//! The process group of one command.

use std::io;
use std::sync::Arc;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};

use crate::groups::Groups;

/// A command and everything it started. Killed at the end of the attempt, however that comes about.
///
/// Drop it before the child is waited for: until then nothing else can have the group's number.
#[derive(Debug)]
pub struct Group {
    id: Pid,
    groups: Arc<Groups>,
}

impl Group {
    /// The group that this child leads. None if it has been waited for.
    pub fn of(child: &Child, groups: &Arc<Groups>) -> Option<Self> {
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)?;
        groups.add(id);
        Some(Self { id, groups: groups.clone() })
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        // Fails if nothing is left of it.
        let _ = kill_process_group(self.id, signal);
    }

    /// Waits until its leader has ended, which keeps its number until it is waited for otherwise.
    pub async fn leader_ended(&self) -> io::Result<()> {
        // Before the first look, so that no end is missed.
        let mut ends = signal(SignalKind::child())?;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        while waitid(WaitId::Pid(self.id), options)?.is_none() {
            ends.recv().await;
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        self.groups.remove(self.id);
    }
}
