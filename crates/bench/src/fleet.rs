//! Worker processes and what they tell.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::ChildStdout,
    sync::watch,
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::{latency::Latency, program, program::Program, rig::Rig};

/// No job handled for so long: something is broken.
pub(crate) const STALL_BOUND: Duration = Duration::from_mins(1);

/// Between two looks at whether a process has died.
const CHECK_PAUSE: Duration = Duration::from_millis(200);

/// How workers are started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crew {
    /// Processes.
    pub(crate) processes: u32,
    /// Workers in each.
    pub(crate) instances: u32,
    /// Jobs that each worker runs at once.
    pub(crate) slots: u32,
}

/// The workers of the drain: two processes of 128 slots.
pub(crate) const TWO: Crew = Crew { processes: 2, instances: 1, slots: 128 };

/// Running worker processes.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    members: Vec<Member>,
    /// Jobs that were handled before those that count.
    before: u64,
}

#[derive(Debug)]
struct Member {
    program: Program,
    /// Jobs handled so far.
    handled: watch::Receiver<u64>,
    /// Reads what it writes; its result is the last line.
    reader: JoinHandle<anyhow::Result<Value>>,
}

impl Fleet {
    /// Starts a crew; process number n works for scheduler number n, counted round.
    pub(crate) fn start(&mut self, rig: &Rig, crew: Crew, schedulers: &[String]) -> anyhow::Result<()> {
        for n in 0..crew.processes {
            let name = format!("bench-worker-{}", self.members.len() + 1);
            let scheduler = schedulers.get(n as usize % schedulers.len().max(1)).context("start a scheduler first")?;
            let mut command = program::command(&rig.program("bench-worker"));
            command.args(["--name", &name, "--scheduler", scheduler, "--slots", &crew.slots.to_string()]);
            command.args(["--instances", &crew.instances.to_string()]);
            let mut program = Program::start(&name, command, rig.logs())?;
            let (tell, handled) = watch::channel(0);
            let reader = tokio::spawn(read(program.output()?, tell));
            self.members.push(Member { program, handled, reader });
        }
        Ok(())
    }

    /// Jobs handled so far.
    pub(crate) fn handled(&self) -> u64 {
        self.tally().handled()
    }

    /// Counts the jobs from now on.
    pub(crate) fn reset(&mut self) {
        self.before += self.handled();
    }

    /// Something that knows the number of jobs handled, for another task.
    pub(crate) fn tally(&self) -> Tally {
        Tally { handled: self.members.iter().map(|member| member.handled.clone()).collect(), before: self.before }
    }

    /// Waits until so many jobs are handled in all. An error if nothing moves or a worker dies.
    pub(crate) async fn wait_handled(&mut self, count: u64) -> anyhow::Result<()> {
        // One for the whole wait: it remembers what it has seen.
        let mut tally = self.tally();
        let (mut last, mut moved) = (self.handled(), Instant::now());
        while last < count {
            self.check()?;
            // An end is explained by the next check.
            let _ = timeout(CHECK_PAUSE, tally.changed()).await;
            let now = self.handled();
            if now != last {
                (last, moved) = (now, Instant::now());
            }
            ensure!(moved.elapsed() < STALL_BOUND, "workers stand still after {last} of {count} jobs");
        }
        Ok(())
    }

    /// An error if a worker has died.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        self.members.iter_mut().try_for_each(|member| member.program.check())
    }

    /// Their processes.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|member| member.program.pid())
    }

    /// Lets all drain and end; returns the latencies they saw.
    pub(crate) async fn stop(self) -> anyhow::Result<Latency> {
        let mut latency = Latency::new()?;
        let stops = self.members.into_iter().map(|member| async {
            member.program.stop().await?;
            member.reader.await.context("read a worker's output")?
        });
        for report in futures::future::try_join_all(stops).await? {
            latency.add_json(&report["latency"])?;
        }
        Ok(latency)
    }
}

/// Knows how many jobs were handled.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    handled: Vec<watch::Receiver<u64>>,
    before: u64,
}

impl Tally {
    /// Jobs handled so far.
    pub(crate) fn handled(&self) -> u64 {
        let all: u64 = self.handled.iter().map(|handled| *handled.borrow()).sum();
        all - self.before
    }

    /// Returns when there are more. An error if a worker has ended.
    pub(crate) async fn changed(&mut self) -> anyhow::Result<()> {
        let changes = self.handled.iter_mut().map(|handled| Box::pin(handled.changed()));
        futures::future::select_all(changes).await.0.context("a worker has ended")
    }
}

async fn read(output: ChildStdout, tell: watch::Sender<u64>) -> anyhow::Result<Value> {
    let mut lines = BufReader::new(output).lines();
    while let Some(line) = lines.next_line().await.context("read a worker's output")? {
        match line.parse() {
            Ok(handled) => {
                tell.send_replace(handled);
            }
            Err(_) => return serde_json::from_str(&line).context("read a worker's report"),
        }
    }
    bail!("a worker ended without a report")
}
