//! Counters over a span of time: CPU and memory by process, WAL, commits, statements.

use crate::{
    counters::Counters,
    psql::Psql,
    stage::Stage,
    usage::{self, Usage},
};

/// Where the counters stood when the span began.
#[derive(Debug)]
pub(crate) struct Meter(Reading);

#[derive(Debug)]
struct Reading {
    usage: [(&'static str, Usage); 4],
    server: Server,
}

/// What the database server counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Server {
    /// Bytes of WAL, of the whole server.
    pub(crate) wal: f64,
    /// Transactions that wrote something, of the whole server.
    pub(crate) commits: f64,
    /// Statements in this database; `None` where they are not counted.
    pub(crate) statements: Option<f64>,
}

impl Meter {
    /// Begins.
    pub(crate) async fn start(stage: &Stage<'_>) -> anyhow::Result<Self> {
        Reading::take(stage).await.map(Self)
    }

    /// Ends; `jobs` is what was done meanwhile.
    pub(crate) async fn stop(self, stage: &Stage<'_>, jobs: u64) -> anyhow::Result<Counters> {
        let (then, now) = (self.0, Reading::take(stage).await?);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let jobs = jobs.max(1) as f64;
        let mut counters = Counters::default();
        for ((role, then), (_, now)) in then.usage.into_iter().zip(now.usage) {
            counters.set(format!("{role}_cpu_s_per_1m_jobs"), (now.cpu - then.cpu) / jobs * 1e6);
            counters.set(format!("{role}_peak_mib"), now.mib);
        }
        counters.set("wal_bytes_per_job", (now.server.wal - then.server.wal) / jobs);
        counters.set("commits_per_job", (now.server.commits - then.server.commits) / jobs);
        if let (Some(then), Some(now)) = (then.server.statements, now.server.statements) {
            counters.set("statements_per_job", (now - then) / jobs);
        }
        Ok(counters)
    }
}

impl Reading {
    async fn take(stage: &Stage<'_>) -> anyhow::Result<Self> {
        let usage = [
            ("scheduler", usage::of(stage.scheduler_pids())),
            ("workers", usage::of(stage.fleet.pids())),
            ("generator", usage::own()),
            ("postgres", usage::of_postgres(stage.rig.postmaster)),
        ];
        Ok(Self { usage, server: Server::read(stage).await? })
    }
}

impl Server {
    /// Reads the counters now.
    pub(crate) async fn read(stage: &Stage<'_>) -> anyhow::Result<Self> {
        Self::of(&stage.rig.admin, stage.database.name(), stage.rig.counts_statements).await
    }

    async fn of(admin: &Psql, database: &str, counts_statements: bool) -> anyhow::Result<Self> {
        let statements = if counts_statements { calls(database, "") } else { "0".to_owned() };
        let sql = format!("select pg_current_wal_lsn() - '0/0', pg_snapshot_xmax(pg_current_snapshot()), {statements}");
        let [wal, commits, statements] = admin.numbers::<3>(&sql).await?;
        Ok(Self { wal, commits, statements: counts_statements.then_some(statements) })
    }
}

/// The SQL for the number of calls of statements whose text begins so.
pub(crate) fn calls(database: &str, begins: &str) -> String {
    format!(
        "(select coalesce(sum(s.calls), 0) from pg_stat_statements s join pg_database d on d.oid = s.dbid
            where d.datname = '{database}' and s.query like '{begins}%')"
    )
}
