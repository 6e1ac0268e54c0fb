//! The flags.

use std::time::Duration;

use anyhow::ensure;
use lifecycle::{ListenArgs, check_all, check_duration, check_range};
use queue_core::{MAX_PAYLOAD_BYTES, WorkerName};
use queue_store::StoreConfig;
use telemetry::TelemetryArgs;

use crate::database::DatabaseArgs;
use crate::timing::Timing;

const EXAMPLES: &str = "\
Examples:
  FENCEPOST_DATABASE_URL=postgres://owner@db/jobs scheduler migrate --app-role fencepost
  FENCEPOST_DATABASE_URL=postgres://fencepost@db/jobs scheduler
  scheduler serve --listen 0.0.0.0:7878 --tls-cert tls.crt --tls-key tls.key --tls-client-ca ca.crt

Credentials belong into the environment or into files, not on the command line.";

/// Keeps jobs in PostgreSQL and grants leases to workers.
#[derive(Debug, clap::Parser)]
#[command(name = "scheduler", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Args {
    /// What to do; serve if not given.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Flags of `serve`.
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Serves until told to stop.
    #[command(after_help = EXAMPLES)]
    Serve(Box<ServeArgs>),
    /// Brings the schema up to date and exits. Safe to run many at once.
    #[command(after_help = EXAMPLES)]
    Migrate(MigrateArgs),
}

/// Flags of `migrate`.
#[derive(Debug, Clone, clap::Args)]
pub struct MigrateArgs {
    /// Role that schedulers will connect as; it is granted the least they need and owns nothing.
    #[arg(long, env = "FENCEPOST_APP_ROLE", value_name = "ROLE")]
    pub app_role: Option<String>,

    /// Which database, as its owner.
    #[command(flatten)]
    pub database: DatabaseArgs,

    /// Logs and metrics.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

/// Flags of `serve`.
#[derive(Debug, Clone, clap::Args)]
pub struct ServeArgs {
    /// Name of this replica, for people. Host name and process id unless set.
    #[arg(long, env = "FENCEPOST_NAME", value_parser = name)]
    pub name: Option<WorkerName>,

    /// How long a worker's leases outlive its last heartbeat.
    #[arg(long, env = "FENCEPOST_SESSION_TTL", default_value = "15s", value_parser = lifecycle::duration)]
    pub session_ttl: Duration,

    /// How often workers send heartbeats. A third of the session's time unless set.
    #[arg(long, env = "FENCEPOST_HEARTBEAT_INTERVAL", value_parser = lifecycle::duration)]
    pub heartbeat_interval: Option<Duration>,

    /// How long a grant may stay unacknowledged. A third of the session's time unless set.
    #[arg(long, env = "FENCEPOST_GRANT_ACK_TIMEOUT", value_parser = lifecycle::duration)]
    pub grant_ack_timeout: Option<Duration>,

    /// How much longer than its timeout a job's lease may live before it is taken back from a worker that does not end it.
    /// After half of it the worker is told to cancel the handler.
    #[arg(long, env = "FENCEPOST_OVERDUE_ALLOWANCE", default_value = "1m", value_parser = lifecycle::duration)]
    pub overdue_allowance: Duration,

    /// Largest payload, result or effect, in bytes.
    #[arg(long, env = "FENCEPOST_MAX_PAYLOAD_BYTES", default_value_t = queue_core::DEFAULT_MAX_PAYLOAD_BYTES, value_name = "BYTES")]
    pub max_payload_bytes: usize,

    /// How long a job is kept after it was enqueued, if it has ended.
    #[arg(long, env = "FENCEPOST_KEEP_JOBS", default_value = "7d", value_parser = lifecycle::duration)]
    pub keep_jobs: Duration,

    /// How long idempotency keys and effects are kept. Not shorter than jobs.
    #[arg(long, env = "FENCEPOST_KEEP_KEYS", default_value = "30d", value_parser = lifecycle::duration)]
    pub keep_keys: Duration,

    /// How long to wait at shutdown for workers to move elsewhere.
    #[arg(long, env = "FENCEPOST_DRAIN_TIMEOUT", default_value = "10s", value_parser = lifecycle::duration)]
    pub drain_timeout: Duration,

    /// Bound on getting a connection to the database: waiting for a free one, or opening one.
    #[arg(long, env = "FENCEPOST_DB_CONNECT_TIMEOUT", default_value = "3s", value_parser = lifecycle::duration)]
    pub db_connect_timeout: Duration,

    /// Bound on one statement.
    #[arg(long, env = "FENCEPOST_DB_STATEMENT_TIMEOUT", default_value = "3s", value_parser = lifecycle::duration)]
    pub db_statement_timeout: Duration,

    /// Bound on waiting for a lock.
    #[arg(long, env = "FENCEPOST_DB_LOCK_TIMEOUT", default_value = "1s", value_parser = lifecycle::duration)]
    pub db_lock_timeout: Duration,

    /// Bound on an open transaction that does nothing.
    #[arg(long, env = "FENCEPOST_DB_IDLE_TIMEOUT", default_value = "5s", value_parser = lifecycle::duration)]
    pub db_idle_timeout: Duration,

    /// Connections for each kind of hot work: enqueues, and claims with settlements.
    #[arg(long, env = "FENCEPOST_DB_HOT_CONNECTIONS", default_value_t = 4, value_name = "N")]
    pub db_hot_connections: u32,

    /// Connections for look-ups.
    #[arg(long, env = "FENCEPOST_DB_READ_CONNECTIONS", default_value_t = 4, value_name = "N")]
    pub db_read_connections: u32,

    /// Ignores the hints of other schedulers: jobs that they enqueued are found by looking, within seconds.
    #[arg(long, env = "FENCEPOST_NO_HINTS")]
    pub no_hints: bool,

    /// Which database.
    #[command(flatten)]
    pub database: DatabaseArgs,

    /// Where to listen.
    #[command(flatten)]
    pub listen: ListenArgs,

    /// Logs and metrics.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

fn name(text: &str) -> Result<WorkerName, String> {
    WorkerName::new(text).map_err(|invalid| invalid.to_string())
}

fn check(holds: bool, problem: impl FnOnce() -> String) -> anyhow::Result<()> {
    ensure!(holds, problem());
    Ok(())
}

impl ServeArgs {
    /// Checks all flags together and names everything that does not fit; each bound on the database must end before a
    /// lease does.
    pub fn check(&self) -> anyhow::Result<Timing> {
        let timing = Timing::new(self);
        let longest = Duration::from_hours(24 * 3660);
        let mut checks = vec![
            check_duration("--session-ttl", self.session_ttl, Duration::from_secs(1)..=Duration::from_hours(1)),
            check_range("--max-payload-bytes", self.max_payload_bytes, 1..=MAX_PAYLOAD_BYTES),
            check_range("--db-hot-connections", self.db_hot_connections, 3..=100),
            check_range("--db-read-connections", self.db_read_connections, 1..=100),
            check_duration("--keep-jobs", self.keep_jobs, Duration::from_hours(1)..=longest),
            check(self.keep_keys >= self.keep_jobs, || "--keep-keys must not be shorter than --keep-jobs".to_owned()),
        ];
        checks.extend(self.check_bounds(timing));
        checks.push(self.listen.validate());
        checks.push(self.database.url().map(drop));
        check_all(checks)?;
        Ok(timing)
    }

    /// Checks what must be over before a lease is.
    fn check_bounds(&self, timing: Timing) -> impl Iterator<Item = anyhow::Result<()>> {
        let ttl = self.session_ttl;
        let bounds = [
            ("--heartbeat-interval", timing.heartbeat * 2, "twice "),
            ("--grant-ack-timeout", timing.grant_ack, ""),
            ("--db-connect-timeout", self.db_connect_timeout, ""),
            ("--db-statement-timeout", self.db_statement_timeout, ""),
            ("--db-lock-timeout", self.db_lock_timeout, ""),
            ("--db-idle-timeout", self.db_idle_timeout, ""),
        ];
        bounds.into_iter().map(move |(flag, bound, times)| {
            ensure!(!bound.is_zero(), "{flag} must not be zero");
            ensure!(bound < ttl, "{times}{flag} ({bound:?}) must be shorter than --session-ttl ({ttl:?})");
            Ok(())
        })
    }

    /// How to reach the database.
    pub fn store(&self) -> anyhow::Result<StoreConfig> {
        Ok(StoreConfig {
            url: self.database.url()?,
            connect_timeout: self.db_connect_timeout,
            statement_timeout: self.db_statement_timeout,
            lock_timeout: self.db_lock_timeout,
            idle_in_transaction_timeout: self.db_idle_timeout,
            hot_connections: self.db_hot_connections,
            read_connections: self.db_read_connections,
        })
    }
}
