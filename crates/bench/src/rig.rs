//! What all scenarios share: programs, the database server, and how large everything is.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit, test_kill_process};
use tokio::sync::Mutex;

use crate::{
    args::Server,
    database::Database,
    prefill::{self, Place},
    program,
    psql::Psql,
};

/// The schedulers' role; it owns nothing.
const ROLE: &str = "fencepost_bench";

/// The migrated database that all others are copies of.
pub(crate) const TEMPLATE: &str = "fencepost_template";

/// The machine, set up.
#[derive(Debug)]
pub(crate) struct Rig {
    /// The superuser's first database.
    pub(crate) admin: Psql,
    /// Whether everything is scaled down.
    pub(crate) quick: bool,
    /// The database server's first process.
    pub(crate) postmaster: u32,
    /// Whether statements are counted.
    pub(crate) counts_statements: bool,
    /// Major version of the database server.
    pub(crate) major: u32,
    password: String,
    programs: PathBuf,
    logs: PathBuf,
    made: AtomicU32,
    filled: Mutex<Option<(Place, String)>>,
    steady: Mutex<Option<f64>>,
}

impl Rig {
    /// Prepares the server: the schedulers' role, and a migrated database to copy.
    pub(crate) async fn set_up(server: &Server, quick: bool) -> anyhow::Result<Self> {
        ensure!(!server.database_url.is_empty(), "run this by `cargo xtask bench`, which starts a database");
        fs::create_dir_all(&server.logs).with_context(|| format!("make {}", server.logs.display()))?;
        raise_file_limit();
        let mut rig = Self {
            admin: Psql::new(&server.psql, &server.database_url)?,
            quick,
            postmaster: server.postmaster,
            counts_statements: false,
            major: 0,
            // The server listens to this machine only and is gone with the bench.
            password: format!("{:032x}", rand::random::<u128>()),
            programs: server.programs.clone(),
            logs: server.logs.clone(),
            made: AtomicU32::new(0),
            filled: Mutex::new(None),
            steady: Mutex::new(None),
        };
        rig.counts_statements =
            rig.admin.run("create extension pg_stat_statements; select pg_stat_statements_reset()").await.is_ok();
        rig.major =
            rig.admin.row("select current_setting('server_version_num')::integer / 10000").await?.concat().parse()?;
        rig.admin.run(&format!("create role {ROLE} login password '{}'", rig.password)).await.context("make a role")?;
        rig.admin.run(&format!("create database {TEMPLATE}")).await.context("make a database")?;
        let mut migrate = program::command(&rig.program("scheduler"));
        migrate.args(["migrate", "--app-role", ROLE]).env("FENCEPOST_DATABASE_URL", rig.admin.database(TEMPLATE).url());
        let output = migrate.output().await.context("start the migration")?;
        ensure!(output.status.success(), "migrate: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(rig)
    }

    /// One of the programs.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// The folder of logs.
    pub(crate) fn logs(&self) -> &Path {
        &self.logs
    }

    /// A number that only this call gets.
    pub(crate) fn number(&self) -> u32 {
        self.made.fetch_add(1, Ordering::Relaxed)
    }

    /// The schedulers' way into a database.
    pub(crate) fn scheduler_url(&self, database: &Psql) -> anyhow::Result<String> {
        Ok(database.role(ROLE, &self.password)?.url().to_owned())
    }

    /// A database server that has died explains a failure better than what was noticed of it.
    pub(crate) fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        match Pid::from_raw(self.postmaster.cast_signed()).map(test_kill_process) {
            Some(Err(_)) => {
                error.context(format!("PostgreSQL has ended; {}/postgres.log says more", self.logs.display()))
            }
            _ => error,
        }
    }

    /// The first in a full run, the second in a quick one.
    pub(crate) fn scaled<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// A database that holds so many jobs; made at the first call, copied at each.
    pub(crate) async fn filled(&self, place: Place, jobs: u64) -> anyhow::Result<Database> {
        let mut filled = self.filled.lock().await;
        let name = match filled.take() {
            Some((held, name)) if held == place => name,
            other => {
                // They are large: one at a time.
                if let Some((_, name)) = other {
                    self.admin.run(&format!("drop database {name} with (force)")).await.context("remove a database")?;
                }
                prefill::database(self, place, jobs).await?
            }
        };
        *filled = Some((place, name.clone()));
        Database::copy(self, &name).await
    }

    /// The steady throughput, as it was measured last or by `measure` now.
    pub(crate) async fn steady_rate(&self, measure: impl Future<Output = anyhow::Result<f64>>) -> anyhow::Result<f64> {
        let mut steady = self.steady.lock().await;
        if let Some(rate) = *steady {
            return Ok(rate);
        }
        Ok(*steady.insert(measure.await?))
    }

    /// Notes the steady throughput.
    pub(crate) async fn note_steady_rate(&self, rate: f64) {
        *self.steady.lock().await = Some(rate);
    }
}

/// Many sessions are many connections, here and in the schedulers that inherit the limit.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it stays as it was, too many connections are refused with a clear message.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
