//! One run's system: a database, schedulers, workers.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use client::{Client, ConnectOptions, v1::QueueStats};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::{
    commits::Commits,
    counters::Counters,
    database::Database,
    fleet::{Crew, Fleet},
    jobs::QUEUE,
    latency::Latency,
    program,
    program::Program,
    rig::Rig,
};

/// For a scheduler to become ready after its start.
const READY_BOUND: Duration = Duration::from_secs(30);

/// For the last results to be committed once all handlers have run.
const SETTLE_BOUND: Duration = Duration::from_mins(1);

/// Between two looks at something that is about to happen.
const PAUSE: Duration = Duration::from_millis(20);

/// Running processes of one run. A drop kills them.
#[derive(Debug)]
pub(crate) struct Stage<'r> {
    // In the order in which a drop ends them.
    /// The workers.
    pub(crate) fleet: Fleet,
    schedulers: Vec<Scheduler>,
    /// The database.
    pub(crate) database: Database,
    /// What it is made of.
    pub(crate) rig: &'r Rig,
    mark: Mark,
}

/// Where the jobs that count begin.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    /// Sessions up to this number do not count.
    session_no: u64,
    /// So many jobs had succeeded.
    succeeded: u64,
}

#[derive(Debug)]
struct Scheduler {
    program: Program,
    address: SocketAddr,
    metrics: SocketAddr,
}

impl<'r> Stage<'r> {
    /// An empty database and one scheduler.
    pub(crate) async fn set(rig: &'r Rig) -> anyhow::Result<Self> {
        Self::on(rig, Database::fresh(rig).await?).await
    }

    /// A given database and one scheduler.
    pub(crate) async fn on(rig: &'r Rig, database: Database) -> anyhow::Result<Self> {
        let mut stage = Self { fleet: Fleet::default(), schedulers: Vec::new(), database, rig, mark: Mark::default() };
        stage.start_scheduler().await?;
        Ok(stage)
    }

    /// Starts one more scheduler.
    pub(crate) async fn start_scheduler(&mut self) -> anyhow::Result<()> {
        self.start_scheduler_at(free_address()?).await
    }

    /// Kills the first scheduler without a goodbye, and returns where it was.
    pub(crate) async fn kill_scheduler(&mut self) -> anyhow::Result<SocketAddr> {
        let mut old = self.schedulers.remove(0);
        old.program.kill().await?;
        Ok(old.address)
    }

    /// Starts a scheduler with its default flags and its metrics; returns when it listens.
    pub(crate) async fn start_scheduler_at(&mut self, address: SocketAddr) -> anyhow::Result<()> {
        let metrics = free_address()?;
        let mut command = program::command(&self.rig.program("scheduler"));
        command.args(["serve", "--listen", &address.to_string(), "--metrics-listen", &metrics.to_string()]);
        command.env("FENCEPOST_DATABASE_URL", self.rig.scheduler_url(&self.database.psql)?);
        let name = format!("scheduler-{}", self.schedulers.len() + 1);
        let mut program = Program::start(&name, command, self.rig.logs())?;
        let started = Instant::now();
        // It listens when everything else stands.
        while TcpStream::connect(address).await.is_err() {
            program.check()?;
            ensure!(started.elapsed() < READY_BOUND, "the scheduler does not listen after {READY_BOUND:?}");
            sleep(PAUSE).await;
        }
        self.schedulers.push(Scheduler { program, address, metrics });
        Ok(())
    }

    /// Starts workers, spread over the schedulers.
    pub(crate) fn start_workers(&mut self, crew: Crew) -> anyhow::Result<()> {
        let urls: Vec<String> = self.schedulers.iter().map(Scheduler::url).collect();
        self.fleet.start(self.rig, crew, &urls)
    }

    /// How to reach the schedulers, the first one first.
    pub(crate) fn connect_options(&self) -> ConnectOptions {
        ConnectOptions::new(self.schedulers.iter().map(Scheduler::url))
    }

    /// A new connection of a producer.
    pub(crate) async fn client(&self) -> anyhow::Result<Client> {
        Client::connect(&self.connect_options()).await.context("connect to the scheduler")
    }

    /// Processes of the schedulers.
    pub(crate) fn scheduler_pids(&self) -> impl Iterator<Item = u32> {
        self.schedulers.iter().map(|scheduler| scheduler.program.pid())
    }

    /// How long the commits of all schedulers took so far, by one writer.
    pub(crate) async fn commits(&self, writer: &str) -> anyhow::Result<Commits> {
        let mut all = Commits::default();
        for scheduler in &self.schedulers {
            all.add(&Commits::read(scheduler.metrics, writer).await?);
        }
        Ok(all)
    }

    /// An error if a process has died.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        self.schedulers.iter_mut().try_for_each(|scheduler| scheduler.program.check())?;
        self.fleet.check()
    }

    /// A process that has died explains a failure better than what was noticed of it.
    pub(crate) fn explain<T>(&mut self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        if result.is_err() {
            self.check()?;
        }
        result
    }

    /// Lets time pass, and watches that everything runs.
    pub(crate) async fn pass(&mut self, time: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            sleep(end.saturating_duration_since(Instant::now()).min(Duration::from_millis(200))).await;
            self.check()?;
        }
        Ok(())
    }

    /// Waits until so many jobs have succeeded, committed. An error if others are left anywhere but in `ready`.
    pub(crate) async fn wait_succeeded(&mut self, count: u64) -> anyhow::Result<()> {
        self.fleet.wait_handled(count).await?;
        let client = self.client().await?;
        let began = Instant::now();
        loop {
            self.check()?;
            let queue = counts(&client).await?;
            ensure!(queue.dead == 0 && queue.cancelled == 0, "jobs are dead or cancelled: {queue:?}");
            if u64::try_from(queue.succeeded)? >= self.mark.succeeded + count {
                return Ok(());
            }
            ensure!(
                began.elapsed() < SETTLE_BOUND,
                "handled {count} jobs, but after {SETTLE_BOUND:?} there is {queue:?}"
            );
            sleep(PAUSE).await;
        }
    }

    /// An error unless exactly so many jobs are ready, and none anywhere else.
    pub(crate) async fn expect_ready(&self, count: u64) -> anyhow::Result<()> {
        let queue = counts(&self.client().await?).await?;
        let others = queue.scheduled + queue.leased + queue.succeeded + queue.dead + queue.cancelled;
        ensure!(u64::try_from(queue.ready)? == count && others == 0, "expected {count} ready jobs, not {queue:?}");
        Ok(())
    }

    /// Ends the workers; from now on only jobs count that later ones run.
    pub(crate) async fn mark(&mut self) -> anyhow::Result<()> {
        std::mem::take(&mut self.fleet).stop().await?;
        let last = self.database.psql.row("select coalesce(max(session_no), 0) from fencepost.worker").await?;
        let succeeded = u64::try_from(counts(&self.client().await?).await?.succeeded)?;
        self.mark = Mark { session_no: last.concat().parse().context("read the last session")?, succeeded };
        Ok(())
    }

    /// Waits until so many worker sessions are open.
    pub(crate) async fn wait_sessions(&mut self, count: u32) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let [open] =
                self.database.psql.numbers::<1>("select count(*) from fencepost.worker_session where not dead").await?;
            if open >= f64::from(count) {
                return Ok(());
            }
            self.check()?;
            ensure!(began.elapsed() < READY_BOUND, "{open} of {count} workers are connected after {READY_BOUND:?}");
        }
    }

    /// Waits until workers hold so many jobs.
    pub(crate) async fn wait_leased(&mut self, count: u64) -> anyhow::Result<()> {
        let (client, began) = (self.client().await?, Instant::now());
        loop {
            let queue = counts(&client).await?;
            if u64::try_from(queue.leased)? == count {
                return Ok(());
            }
            self.check()?;
            ensure!(began.elapsed() < READY_BOUND, "after {READY_BOUND:?} there is {queue:?}, not {count} held jobs");
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Jobs per second over the first `count` that finished: from the first start to the last end, by the database's clock.
    pub(crate) async fn rate(&self, count: u64) -> anyhow::Result<f64> {
        let since = self.mark.session_no;
        let sql = format!(
            "select count(*), extract(epoch from max(finished_at) - min(started_at)) from (
                select started_at, finished_at from fencepost.finished where session_no > {since} order by finished_at limit {count}
            ) f"
        );
        let [found, seconds] = self.database.psql.numbers::<2>(&sql).await?;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let expected = count as f64;
        ensure!((found - expected).abs() < 0.5, "{found} jobs are in finished, not {count}");
        ensure!(seconds > 0.0, "all jobs finished in the same instant");
        Ok(found / seconds)
    }

    /// Stops everything in order, counts what is left over, and removes the database.
    pub(crate) async fn strike(self, counters: &mut Counters) -> anyhow::Result<Latency> {
        let latency = self.fleet.stop().await?;
        for scheduler in self.schedulers {
            scheduler.program.stop().await?;
        }
        // Its connections are closed, so that they have told the server what they did.
        let dead = "select coalesce(sum(n_dead_tup), 0) from pg_stat_user_tables";
        let [dead] = self.database.psql.numbers::<1>(dead).await?;
        counters.set("dead_tuples_left", dead);
        self.database.remove().await?;
        Ok(latency)
    }
}

/// Where the measured jobs are.
async fn counts(client: &Client) -> anyhow::Result<QueueStats> {
    let queues = client.queue_stats(&[]).await.context("ask for the queue's counts")?;
    queues.into_iter().find(|queue| queue.queue == QUEUE).context("the queue is not there")
}

impl Scheduler {
    fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    Ok(listener.local_addr()?)
}
