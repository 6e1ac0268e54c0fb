//! The internal tasks of a process, none of which may die unnoticed.

use std::collections::HashMap;

use anyhow::{Context, anyhow};
use tokio::task::{Id, JoinError, JoinSet};

use crate::Shutdown;

/// Tasks that run until shutdown. If one fails, panics or ends early, the others are told to drain.
#[derive(Debug)]
pub struct Tasks {
    shutdown: Shutdown,
    set: JoinSet<anyhow::Result<()>>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    /// No tasks yet.
    pub fn new(shutdown: Shutdown) -> Self {
        Self { shutdown, set: JoinSet::new(), names: HashMap::new() }
    }

    /// Starts a task that runs until the soft token fires, and drains then. The name is for people.
    pub fn spawn<F>(&mut self, name: &'static str, task: F)
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let id = self.set.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Waits until all have ended, or aborts them when the hard token fires.
    ///
    /// Returns the first failure, after the others had their drain; later failures are logged.
    pub async fn join(mut self) -> anyhow::Result<()> {
        let mut first = Ok(());
        loop {
            let ended = tokio::select! {
                ended = self.set.join_next_with_id() => ended,
                () = self.shutdown.hard().cancelled() => {
                    self.set.shutdown().await;
                    return first;
                }
            };
            let Some(ended) = ended else { return first };
            let Err(error) = self.judge(ended) else { continue };
            self.shutdown.trigger();
            if first.is_ok() {
                first = Err(error);
            } else {
                tracing::warn!(error = format!("{error:#}"), "another task failed during shutdown");
            }
        }
    }

    fn judge(&mut self, ended: Result<(Id, anyhow::Result<()>), JoinError>) -> anyhow::Result<()> {
        let (id, result) = match ended {
            Ok((id, result)) => (id, result),
            Err(error) if error.is_panic() => (error.id(), Err(anyhow!("panicked"))),
            Err(error) => (error.id(), Err(anyhow!(error))),
        };
        let name = self.names.remove(&id).unwrap_or("unnamed");
        match result {
            Ok(()) if self.shutdown.soft().is_cancelled() => Ok(()),
            Ok(()) => Err(anyhow!("task {name} ended before shutdown")),
            Err(error) => Err(error).with_context(|| format!("task {name}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn joined(task: impl Future<Output = anyhow::Result<()>> + Send + 'static) -> String {
        let shutdown = Shutdown::new();
        let mut tasks = Tasks::new(shutdown.clone());
        let other = shutdown.clone();
        tasks.spawn("other", async move {
            other.soft().cancelled().await;
            Ok(())
        });
        tasks.spawn("loop", task);
        format!("{:#}", tasks.join().await.unwrap_err())
    }

    #[tokio::test]
    async fn a_failed_panicked_or_ended_task_drains_the_others_and_fails_the_process() {
        assert_eq!(joined(async { Err(anyhow!("disk full")) }).await, "task loop: disk full");
        assert_eq!(joined(async { panic!("bug") }).await, "task loop: panicked");
        assert_eq!(joined(async { Ok(()) }).await, "task loop ended before shutdown");
    }

    #[tokio::test]
    async fn tasks_that_end_after_the_soft_token_are_no_failure() {
        let shutdown = Shutdown::new();
        let mut tasks = Tasks::new(shutdown.clone());
        let soft = shutdown.soft().clone();
        tasks.spawn("loop", async move {
            soft.cancelled().await;
            Ok(())
        });
        shutdown.trigger();
        tasks.join().await.unwrap();
    }

    #[tokio::test]
    async fn the_hard_token_aborts_a_task_that_hangs() {
        let shutdown = Shutdown::new();
        let mut tasks = Tasks::new(shutdown.clone());
        tasks.spawn("hangs", std::future::pending());
        shutdown.trigger_hard();
        tasks.join().await.unwrap();
    }
}
