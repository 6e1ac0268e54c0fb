//! The whole system on this machine: database, scheduler, reaper, workers.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use tokio::{net::TcpStream, time::Instant};

use crate::{database::Database, interrupt::Interrupt, run, service, service::Service, workspace};

/// The queue of the demonstration's jobs.
pub const QUEUE: &str = "demo";

/// For the scheduler to become ready after its start.
const READY_BOUND: Duration = Duration::from_secs(30);

/// Between two looks at whether everything still runs.
pub const CHECK_PAUSE: Duration = Duration::from_millis(500);

/// Between two looks at a scheduler that is starting.
const READY_PAUSE: Duration = Duration::from_millis(50);

/// A session that was not renewed for so long is dead. Much less than the default, since nobody wants to wait for it; more than each
/// of the scheduler's bounds on its database.
const SESSION_TTL: &str = "6s";

/// Jobs that one worker runs at a time: enough that a killed worker always leaves some behind.
const CONCURRENCY: u32 = 32;

/// How a stack is started.
#[derive(Debug, clap::Args)]
pub struct StackArgs {
    /// Builds and runs optimised programs.
    #[arg(long)]
    release: bool,
    /// A server to make a database on, dropped at the end; without it a private server is started.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<String>,
}

/// Running programs. To be ended with [`Stack::stop`]; a drop only kills them.
#[derive(Debug)]
pub struct Stack {
    // In the order in which a drop ends them.
    workers: Vec<Service>,
    reaper: Option<Service>,
    scheduler: Option<Service>,
    database: Database,
    programs: PathBuf,
    logs: PathBuf,
    grpc: SocketAddr,
    metrics: SocketAddr,
    started_workers: u32,
}

/// Builds the programs, with cargo's messages shown only where something is wrong or takes long.
pub async fn build(args: &StackArgs, interrupt: &mut Interrupt) -> anyhow::Result<()> {
    let mut cargo = run::cargo();
    // In one go, so that what they share is built once.
    cargo.args(["build", "--package", "scheduler", "--package", "reaper", "--package", "worker", "--package", "demo"]);
    cargo.args(["--bins", "--example", "file_digest"]);
    if args.release {
        cargo.arg("--release");
    }
    run::success(cargo, interrupt).await
}

impl Stack {
    /// Starts database, scheduler and reaper, and then so many workers. `name` is the folder of logs below `target/`.
    pub async fn start(args: &StackArgs, name: &str, ports: [u16; 2], workers: u32) -> anyhow::Result<Self> {
        let logs = workspace::target().join(name);
        fs::create_dir_all(&logs).with_context(|| format!("make {}", logs.display()))?;
        let programs = workspace::target().join(if args.release { "release" } else { "debug" });
        let given = args.database_url.as_deref().filter(|url| !url.is_empty());
        let database = Database::make(given, &logs.join("postgres.log")).await?;
        let [grpc, metrics] = ports.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let mut stack = Self {
            workers: Vec::new(),
            reaper: None,
            scheduler: None,
            database,
            programs,
            logs,
            grpc,
            metrics,
            started_workers: 0,
        };
        // Whatever fails from here on, the database is removed.
        match stack.start_programs(workers).await {
            Ok(()) => Ok(stack),
            Err(error) => {
                stack.stop().await.context("clean up")?;
                Err(error)
            }
        }
    }

    async fn start_programs(&mut self, workers: u32) -> anyhow::Result<()> {
        self.migrate().await?;
        self.start_scheduler().await?;
        let mut reaper = service::command(&self.program("reaper"));
        reaper.args(["--scheduler", &self.url()]);
        self.reaper = Some(Service::start("reaper", reaper, &self.logs)?);
        for _ in 0..workers {
            self.start_worker()?;
        }
        Ok(())
    }

    async fn migrate(&self) -> anyhow::Result<()> {
        let mut migrate = service::command(&self.program("scheduler"));
        migrate.arg("migrate").env("FENCEPOST_DATABASE_URL", self.database.owner.url());
        if let Some(role) = self.database.app_role {
            migrate.args(["--app-role", role]);
        }
        let output = migrate.output().await.context("start the migration")?;
        ensure!(output.status.success(), "migrate: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }

    async fn start_scheduler(&mut self) -> anyhow::Result<()> {
        let mut command = service::command(&self.program("scheduler"));
        command.args(["serve", "--listen", &self.grpc.to_string(), "--metrics-listen", &self.metrics.to_string()]);
        command.args(["--session-ttl", SESSION_TTL]).env("FENCEPOST_DATABASE_URL", self.database.scheduler.url());
        let mut scheduler = Service::start("scheduler", command, &self.logs)?;
        let started = Instant::now();
        // It listens when everything else stands.
        while TcpStream::connect(self.grpc).await.is_err() {
            scheduler.check()?;
            ensure!(started.elapsed() < READY_BOUND, "the scheduler does not listen after {READY_BOUND:?}");
            tokio::time::sleep(READY_PAUSE).await;
        }
        self.scheduler = Some(scheduler);
        Ok(())
    }

    /// Starts one more worker, and returns its name.
    pub fn start_worker(&mut self) -> anyhow::Result<String> {
        self.started_workers += 1;
        let name = format!("worker-{}", self.started_workers);
        let mut command = service::command(&self.program("examples/file_digest"));
        command.args(["--scheduler", &self.url(), "--queue", QUEUE, "--name", &name]);
        command.args(["--concurrency", &CONCURRENCY.to_string()]);
        self.workers.push(Service::start(&name, command, &self.logs)?);
        Ok(name)
    }

    /// Kills the oldest worker without a goodbye, and returns its name.
    pub async fn kill_worker(&mut self) -> anyhow::Result<String> {
        ensure!(!self.workers.is_empty(), "there is no worker to kill");
        let mut worker = self.workers.remove(0);
        worker.kill().await?;
        Ok(worker.name().to_owned())
    }

    /// An error if one of the programs has ended by itself.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.workers.iter_mut().chain(&mut self.reaper).chain(&mut self.scheduler).try_for_each(Service::check)
    }

    /// Where the scheduler serves gRPC.
    pub fn url(&self) -> String {
        format!("http://{}", self.grpc)
    }

    /// Where the scheduler serves metrics.
    pub fn metrics(&self) -> SocketAddr {
        self.metrics
    }

    /// Where everything is, for people.
    pub fn describe(&self) -> String {
        let (url, metrics, psql, logs) = (self.url(), self.metrics, self.database.psql_line(), self.logs.display());
        format!("scheduler  {url}\nmetrics    http://{metrics}/metrics\ndatabase   {psql}\nlogs       {logs}/*.log")
    }

    /// One of the programs, by its path below cargo's folder of the profile.
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// The folder of the programs' logs.
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    /// Drains and stops everything in order, and goes on after a failure, the first of which is returned.
    pub async fn stop(self) -> anyhow::Result<()> {
        let mut first = Ok(());
        let mut keep = |result: anyhow::Result<()>| {
            if first.is_ok() {
                first = result;
            }
        };
        // The workers drain together: each may wait for its longest job.
        let mut draining = tokio::task::JoinSet::new();
        for worker in self.workers {
            draining.spawn(worker.stop());
        }
        for result in draining.join_all().await {
            keep(result);
        }
        for service in self.reaper.into_iter().chain(self.scheduler) {
            keep(service.stop().await);
        }
        keep(self.database.remove().await);
        first
    }
}

/// The wanted ports where they are free, else others; 0 wants any.
pub fn ports(wanted: [u16; 2]) -> anyhow::Result<[u16; 2]> {
    let listen = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    // Held until both are known, so that they differ.
    let [grpc, metrics] = wanted.map(|port| listen(port).or_else(|_| listen(0)).context("find a free port"));
    let (grpc, metrics) = (grpc?, metrics?);
    Ok([grpc.local_addr()?.port(), metrics.local_addr()?.port()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_replaced_by_a_free_one() -> anyhow::Result<()> {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = taken.local_addr()?.port();
        let [grpc, metrics] = ports([port, 0])?;
        assert!(grpc != port && metrics != port && grpc != metrics && grpc != 0);
        Ok(())
    }
}
