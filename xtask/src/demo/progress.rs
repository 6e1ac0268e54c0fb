//! The middle of the demonstration: watching the queue, and killing a worker.

use std::{io::IsTerminal as _, time::Duration};

use anyhow::{Context as _, bail, ensure};
use client::Client;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use queue_core::QueueName;
use tokio::{task::AbortHandle, time::Instant};

use super::LOOK_PAUSE;
use crate::{stack, stack::Stack};

/// The share of finished jobs at which a worker dies.
const KILL_AT: f64 = 0.4;

/// Without a finished job for so long something is wrong: several times what a killed worker's jobs take to return.
const STALL_BOUND: Duration = Duration::from_mins(1);

/// Lines of progress where no bar can be drawn.
const PLAIN_LINES: u64 = 10;

/// Returns when all jobs have finished, and has killed a worker and started another on the way.
pub(super) async fn follow(
    stack: &mut Stack,
    client: &Client,
    files: usize,
    enqueuing: AbortHandle,
) -> anyhow::Result<()> {
    // A failure here must not leave the other half going on.
    let result = watch(stack, client, files as u64, &enqueuing).await;
    if result.is_err() {
        enqueuing.abort();
    }
    result
}

async fn watch(stack: &mut Stack, client: &Client, total: u64, enqueuing: &AbortHandle) -> anyhow::Result<()> {
    let queue = [QueueName::new(stack::QUEUE)?];
    let mut shown = Shown::new(total);
    let (mut killed, mut done, mut moved) = (false, 0, Instant::now());
    loop {
        stack.check()?;
        let stats = client.queue_stats(&queue).await.context("ask for the queue's numbers")?;
        let (now_done, leased) = stats.first().map_or((0, 0), |s| (s.succeeded + s.dead, s.leased));
        let now_done = u64::try_from(now_done).unwrap_or_default();
        if now_done != done {
            (done, moved) = (now_done, Instant::now());
            shown.at(done);
        }
        if done >= total {
            shown.end();
            ensure!(killed, "all jobs had finished before a worker could be killed: use more files");
            return Ok(());
        }
        if !killed && leased > 0 && is_middle(done, total) {
            stack.kill_worker().await?;
            stack.start_worker()?;
            shown.say("killed worker-1 with SIGKILL, started worker-3");
            killed = true;
        }
        if moved.elapsed() > STALL_BOUND {
            bail!(
                "no job has finished for {STALL_BOUND:?}: {done} of {total} are done, enqueued: {}",
                enqueuing.is_finished()
            );
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

#[expect(clippy::cast_precision_loss, reason = "numbers of files are far below what a double holds exactly")]
fn is_middle(done: u64, total: u64) -> bool {
    done as f64 >= total as f64 * KILL_AT
}

/// The bar, or lines where output is no terminal.
struct Shown {
    bar: ProgressBar,
    plain: bool,
    total: u64,
    tenth: u64,
}

impl Shown {
    fn new(total: u64) -> Self {
        let plain = !std::io::stderr().is_terminal();
        let target = if plain { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        // The template is a constant; were it wrong, the default bar would be shown.
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} jobs  {per_sec}  {elapsed}") {
            bar.set_style(style);
        }
        Self { bar, plain, total, tenth: 0 }
    }

    fn at(&mut self, done: u64) {
        self.bar.set_position(done);
        let tenth = done * PLAIN_LINES / self.total;
        if self.plain && tenth != self.tenth {
            self.tenth = tenth;
            eprintln!("{done} of {} jobs", self.total);
        }
    }

    fn say(&self, line: &str) {
        if self.plain {
            eprintln!("{line}");
        } else {
            self.bar.println(line);
        }
    }

    fn end(&self) {
        self.bar.finish();
    }
}
