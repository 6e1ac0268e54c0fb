//! The middle of the demonstration: watching the queue.

use std::{io::IsTerminal as _, time::Duration};

use anyhow::{Context as _, bail};
use client::Client;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use queue_core::QueueName;
use tokio::time::{Instant, timeout};

use crate::HALFWAY;

/// The share of finished jobs at which a worker dies.
const KILL_AT: f64 = 0.4;

/// Without a finished job for so long something is wrong: several times what a killed worker's jobs take to return.
const STALL_BOUND: Duration = Duration::from_mins(1);

/// For the answer to [`HALFWAY`].
const KILL_BOUND: Duration = Duration::from_secs(10);

/// Between two looks at the queue.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Lines of progress where no bar can be drawn.
const PLAIN_LINES: u64 = 10;

/// Returns when all jobs have finished; asks for the death of a worker on the way.
pub(crate) async fn follow(client: &Client, queue: &str, files: usize) -> anyhow::Result<()> {
    let queue = [QueueName::new(queue)?];
    let mut shown = Shown::new(files as u64);
    let (mut killed, mut seen) = (false, (0, Instant::now()));
    loop {
        let stats = client.queue_stats(&queue).await.context("ask for the queue's numbers")?;
        let (done, leased) = stats.first().map_or((0, 0), |queue| (queue.succeeded + queue.dead, queue.leased));
        let done = u64::try_from(done).unwrap_or_default();
        if done != seen.0 {
            seen = (done, Instant::now());
            shown.at(done);
        }
        if done >= shown.total {
            shown.end(killed);
            return Ok(());
        }
        // A worker that holds nothing would be no loss.
        if !killed && leased > 0 && is_middle(done, shown.total) {
            shown.say(&have_worker_killed().await?);
            killed = true;
        }
        if seen.1.elapsed() > STALL_BOUND {
            bail!("no job has finished for {STALL_BOUND:?}: {done} of {} are done", shown.total);
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

/// Asks whoever started the workers, and returns what was done.
async fn have_worker_killed() -> anyhow::Result<String> {
    println!("{HALFWAY}");
    let answer = tokio::task::spawn_blocking(|| std::io::stdin().lines().next().transpose());
    let answer = timeout(KILL_BOUND, answer).await.context("wait for the death of a worker")??;
    answer.context("read what was done")?.context("nobody killed a worker")
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

    fn end(&self, killed: bool) {
        self.bar.finish();
        if !killed {
            eprintln!("all jobs had finished before a worker could be killed; give more files");
        }
    }
}
