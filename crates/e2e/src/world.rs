//! The system under test: a database server, schedulers, workers, a reaper, the network between them, and who enqueues.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr as _,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use client::{Client, ConnectOptions};
use private_postgres::{Options, PrivatePostgres};
use queue_core::{KindName, NewJob, QueueName};
use rand::{SeedableRng as _, rngs::StdRng};
use sqlx::{Connection as _, PgConnection, postgres::PgConnectOptions};
use testbed::{Process, Processes, free_address, listening};
use tokio::time::{Instant, sleep};

use crate::{
    disk::Disk,
    history::{Event, Log},
    producer::Producer,
    proxy::Proxy,
    worker::{KIND, QUEUE, Step},
};

/// How long leases outlive a heartbeat, unless a scenario sets it.
pub(crate) const TTL: Duration = Duration::from_secs(3);

/// For a process to become ready after its start, on a busy machine.
const READY_BOUND: Duration = Duration::from_secs(30);

/// Who writes down the faults.
const DRIVER: &str = "driver";

/// Between two passes of the reaper.
const REAPER_PERIOD: Duration = Duration::from_millis(300);

/// Between two looks at something that is about to happen.
const PAUSE: Duration = Duration::from_millis(50);

/// Everything of one run. A drop ends its processes.
pub(crate) struct World {
    /// Decides whatever chance decides.
    pub(crate) rng: StdRng,
    /// Where faults are written down.
    pub(crate) log: Log,
    /// The schedulers.
    pub(crate) schedulers: Vec<Scheduler>,
    /// The workers.
    pub(crate) workers: Vec<Process>,
    /// The reaper.
    pub(crate) reaper: Option<Process>,
    /// The database server.
    pub(crate) server: PrivatePostgres,
    /// Its disk, if it has one of its own. After the server, which must be gone before it.
    pub(crate) disk: Option<Disk>,
    /// How long leases outlive a heartbeat.
    pub(crate) ttl: Duration,
    /// Variables that processes get besides, such as for a clock that is wrong.
    pub(crate) env: Vec<(&'static str, String)>,
    processes: Processes,
    migrated: bool,
    folder: PathBuf,
    history: PathBuf,
    names: u32,
}

/// One scheduler, with the network around it.
pub(crate) struct Scheduler {
    /// Its process.
    pub(crate) process: Process,
    /// Between it and those who connect to it.
    pub(crate) front: Proxy,
    /// Between it and the database.
    pub(crate) back: Proxy,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Where its metrics are.
    pub(crate) metrics: SocketAddr,
}

impl World {
    /// An empty database and nothing else; on a disk of its own of so many MiB, if that is asked for.
    pub(crate) async fn create(
        seed: u64,
        folder: &Path,
        settings: &[(&str, &str)],
        disk: Option<u32>,
    ) -> anyhow::Result<Self> {
        let history = folder.join("history");
        std::fs::create_dir_all(&history).with_context(|| format!("make {}", history.display()))?;
        let log = Some(folder.join("postgres.log"));
        let settings = settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let options = Options { log, settings, ..Options::default() };
        let disk = disk.map(|mib| Disk::mount(&folder.join("disk"), mib)).transpose()?;
        let place = if disk.is_some() { folder.join("disk") } else { folder.to_owned() };
        let server = tokio::task::spawn_blocking(move || PrivatePostgres::start(&place, &options)).await??;
        Ok(Self {
            rng: StdRng::seed_from_u64(seed),
            log: Log::open(&history, DRIVER)?,
            schedulers: Vec::new(),
            workers: Vec::new(),
            reaper: None,
            server,
            disk,
            ttl: TTL,
            env: Vec::new(),
            processes: Processes::new(),
            migrated: false,
            folder: folder.to_owned(),
            history,
            names: 0,
        })
    }

    /// Starts to bring the schema up to date.
    pub(crate) fn start_migration(&self) -> Process {
        let url = self.server.url("postgres");
        self.processes.start("scheduler", &["migrate"], &[("FENCEPOST_DATABASE_URL", &url)])
    }

    async fn migrate(&mut self) -> anyhow::Result<()> {
        let mut migration = self.start_migration();
        let status = migration.exit(READY_BOUND).await;
        ensure!(status.success(), "the migration failed: {}", migration.log().join("\n"));
        self.migrated = true;
        Ok(())
    }

    /// One more scheduler, behind proxies on both sides; returns when it listens.
    pub(crate) async fn add_scheduler(&mut self) -> anyhow::Result<()> {
        self.add_schedulers(1).await
    }

    /// More schedulers, started together; returns when all listen.
    pub(crate) async fn add_schedulers(&mut self, count: usize) -> anyhow::Result<()> {
        if !self.migrated {
            self.migrate().await?;
        }
        for _ in 0..count {
            let back = Proxy::start((Ipv4Addr::LOCALHOST, self.server.port()).into()).await?;
            let address = free_address();
            let front = Proxy::start(address).await?;
            let metrics = free_address();
            let process = self.start_scheduler(address, metrics, &back)?;
            self.schedulers.push(Scheduler { process, front, back, address, metrics });
        }
        for scheduler in &self.schedulers {
            listening(scheduler.address, READY_BOUND).await;
        }
        Ok(())
    }

    /// A scheduler's process at the place of one that has ended.
    pub(crate) async fn restart_scheduler(&mut self, at: usize) -> anyhow::Result<()> {
        let Scheduler { address, metrics, ref back, .. } = self.schedulers[at];
        self.schedulers[at].process = self.start_scheduler(address, metrics, back)?;
        listening(address, READY_BOUND).await;
        Ok(())
    }

    fn start_scheduler(&self, address: SocketAddr, metrics: SocketAddr, back: &Proxy) -> anyhow::Result<Process> {
        let mut url = PgConnectOptions::from_str(&self.server.url("postgres"))?;
        url = url.port(back.address.port());
        let url = sqlx::ConnectOptions::to_url_lossy(&url).to_string();
        let (listen, metrics, ttl) = (address.to_string(), metrics.to_string(), format!("{}s", self.ttl.as_secs()));
        let args = [
            ["--listen", &listen],
            ["--metrics-listen", &metrics],
            ["--session-ttl", &ttl],
            ["--db-statement-timeout", "1s"],
            ["--db-connect-timeout", "1s"],
            ["--db-lock-timeout", "500ms"],
            ["--db-idle-timeout", "1s"],
        ];
        let env: Vec<(&str, &str)> = self.env.iter().map(|(name, value)| (*name, value.as_str())).collect();
        Ok(self.processes.start("scheduler", &args.concat(), &[&env[..], &[("FENCEPOST_DATABASE_URL", &url)]].concat()))
    }

    /// One more worker of all schedulers.
    pub(crate) fn add_worker(&mut self, slots: u32) {
        let worker = self.start_worker(slots, &[]);
        self.workers.push(worker);
    }

    /// A worker with these flags besides.
    pub(crate) fn start_worker(&mut self, slots: u32, flags: &[&str]) -> Process {
        self.names += 1;
        let (name, slots, history) =
            (format!("worker-{}", self.names), slots.to_string(), self.history.display().to_string());
        let urls = self.urls().join(",");
        let own = ["--name", &name, "--slots", &slots, "--history", &history, "--scheduler", &urls];
        let args: Vec<&str> = own.into_iter().chain(flags.iter().copied()).collect();
        let env: Vec<(&str, &str)> = self.env.iter().map(|(name, value)| (*name, value.as_str())).collect();
        self.processes.start("e2e-worker", &args, &env)
    }

    /// The reaper.
    pub(crate) fn add_reaper(&mut self, period: Duration) {
        let (urls, period) = (self.urls().join(","), format!("{}ms", period.as_millis()));
        let reaper = self.processes.start("reaper", &["--scheduler", &urls, "--period", &period], &[]);
        self.reaper = Some(reaper);
    }

    /// A reaper that audits the database once and ends.
    pub(crate) fn start_audit(&self) -> Process {
        self.processes.start("reaper", &["--scheduler", &self.urls().join(","), "--once"], &[])
    }

    /// All processes that should live to the end, with names for people.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (String, &Process)> {
        let schedulers = self.schedulers.iter().map(|scheduler| &scheduler.process);
        let named = |what: &'static str| move |(at, process)| (format!("{what}-{}", at + 1), process);
        let schedulers = schedulers.enumerate().map(named("scheduler"));
        let workers = self.workers.iter().enumerate().map(named("worker"));
        schedulers.chain(workers).chain(self.reaper.iter().map(|reaper| ("reaper".to_owned(), reaper)))
    }

    /// How to reach the schedulers.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.schedulers.iter().map(|scheduler| format!("http://{}", scheduler.front.address)).collect()
    }

    /// Schedulers, a worker for each with these slots and one more, and a reaper.
    pub(crate) async fn populate(&mut self, schedulers: usize, workers: usize, slots: u32) -> anyhow::Result<()> {
        self.add_schedulers(schedulers).await?;
        for _ in 0..workers {
            self.add_worker(slots);
        }
        self.add_reaper(REAPER_PERIOD);
        Ok(())
    }

    /// Someone who enqueues jobs.
    pub(crate) fn producer(&mut self) -> anyhow::Result<Producer> {
        let keys = format!("keys-{}", self.names);
        self.producer_of(&keys)
    }

    /// Someone who enqueues jobs whose keys begin so.
    pub(crate) fn producer_of(&mut self, keys: &str) -> anyhow::Result<Producer> {
        self.names += 1;
        let client = Client::lazy(&ConnectOptions::new(self.urls()))?;
        Ok(Producer::new(client, self.log(&format!("producer-{}", self.names))?, keys.to_owned()))
    }

    /// Someone who enqueues jobs at one scheduler, not through a proxy.
    pub(crate) fn direct_producer(&mut self, at: usize) -> anyhow::Result<Producer> {
        self.names += 1;
        let name = format!("producer-{}", self.names);
        let client = Client::lazy(&ConnectOptions::new([format!("http://{}", self.schedulers[at].address)]))?;
        Ok(Producer::new(client, self.log(&name)?, name))
    }

    /// A part of the history of its own.
    pub(crate) fn log(&self, by: &str) -> anyhow::Result<Log> {
        Log::open(&self.history, by)
    }

    /// A standby of the database server that every commit waits for.
    pub(crate) async fn add_standby(&mut self) -> anyhow::Result<PrivatePostgres> {
        let standby = tokio::task::block_in_place(|| self.server.standby(&self.folder))?;
        let mut conn = self.connect().await?;
        sqlx::query("alter system set synchronous_standby_names = '*'").execute(&mut conn).await?;
        sqlx::query("select pg_reload_conf()").execute(&mut conn).await?;
        let follows = "select exists (select from pg_stat_replication where sync_state = 'sync')";
        let began = Instant::now();
        while !sqlx::query_scalar::<_, bool>(follows).fetch_one(&mut conn).await? {
            ensure!(began.elapsed() < READY_BOUND, "the standby does not follow after {READY_BOUND:?}");
            sleep(PAUSE).await;
        }
        Ok(standby)
    }

    /// The standby becomes the database server, and all are led to it.
    pub(crate) async fn fail_over(&mut self, standby: PrivatePostgres) -> anyhow::Result<()> {
        self.server = standby;
        let promote = sqlx::query_scalar::<_, bool>("select pg_promote()").fetch_one(&mut self.connect().await?).await;
        ensure!(promote.context("promote the standby")?, "the standby was not promoted in time");
        for scheduler in &self.schedulers {
            scheduler.back.move_to((Ipv4Addr::LOCALHOST, self.server.port()).into());
        }
        Ok(())
    }

    /// A connection of the test's own, not through a proxy.
    pub(crate) async fn connect(&self) -> anyhow::Result<PgConnection> {
        let options = PgConnectOptions::from_str(&self.server.url("postgres"))?;
        PgConnection::connect_with(&options).await.context("connect to the database")
    }

    /// The history's folder.
    pub(crate) fn history(&self) -> &Path {
        &self.history
    }

    /// Writes down that a fault begins.
    pub(crate) fn fault(&self, what: &str) {
        self.log.write(Event::Fault { what: what.to_owned() });
    }

    /// Writes down that a fault is over.
    pub(crate) fn healed(&self, what: &str) {
        self.log.write(Event::Healed { what: what.to_owned() });
    }

    /// Waits until nothing is scheduled, ready or leased.
    pub(crate) async fn rest(&self, within: Duration) -> anyhow::Result<()> {
        let began = Instant::now();
        while !self.is_at_rest().await? {
            ensure!(began.elapsed() < within, "jobs are still scheduled, ready or leased after {within:?}");
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Whether nothing is scheduled, ready or leased.
    pub(crate) async fn is_at_rest(&self) -> anyhow::Result<bool> {
        let open = "select not exists (select from fencepost.ready) and not exists (select from fencepost.lease)
            and not exists (select from fencepost.scheduled)";
        let mut conn = self.connect().await?;
        sqlx::query_scalar(open).fetch_one(&mut conn).await.context("look for what is left")
    }

    /// Writes what all processes said into files of the folder.
    pub(crate) fn keep_logs(&self, folder: &Path) -> anyhow::Result<()> {
        for (name, process) in self.processes() {
            let path = folder.join(name).with_extension("log");
            let text = process.log().join("\n");
            std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }
}

/// A job of the scenarios.
pub(crate) fn job(step: Step, key: &str) -> anyhow::Result<NewJob> {
    let job = NewJob::new(QueueName::new(QUEUE)?, KindName::new(KIND)?, serde_json::to_vec(&step)?);
    Ok(job.with_key(key)?)
}
