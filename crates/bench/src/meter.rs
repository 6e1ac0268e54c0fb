//! Counters over a span of time: CPU and memory by process, WAL, commits, statements.

use tokio::time::Instant;

use crate::{
    counters::Counters,
    psql::Psql,
    stage::Stage,
    usage::{self, Usage},
};

/// Seconds of a core for a million jobs, of all processes. Less than others is it moved by what else the machine does.
pub(crate) const TOTAL_CPU: &str = "total_cpu_s_per_1m_jobs";

/// What the schedulers are called.
const SCHEDULER: &str = "scheduler";

/// Where the counters stand.
#[derive(Debug)]
pub(crate) struct Meter {
    at: Instant,
    usage: [(&'static str, Usage); 4],
    server: Server,
}

/// What the database server counts.
#[derive(Debug, Clone, Copy)]
struct Server {
    /// Bytes of WAL, of the whole server.
    wal: f64,
    /// Transactions that wrote something, of the whole server.
    commits: f64,
    /// Statements in this database; `None` where they are not counted.
    statements: Option<f64>,
}

/// What was used between two readings.
#[derive(Debug)]
pub(crate) struct Span {
    /// How long it was.
    pub(crate) seconds: f64,
    wal: f64,
    statements: Option<f64>,
    commits: f64,
    usage: [(&'static str, Usage); 4],
}

impl Meter {
    /// Reads the counters.
    pub(crate) async fn start(stage: &Stage<'_>) -> anyhow::Result<Self> {
        usage::forget_peak();
        Self::read(stage).await
    }

    async fn read(stage: &Stage<'_>) -> anyhow::Result<Self> {
        let usage = [
            (SCHEDULER, usage::of(stage.scheduler_pids())),
            ("workers", usage::of(stage.fleet.pids())),
            ("generator", usage::own()),
            ("postgres", usage::of_postgres(stage.rig.postmaster)),
        ];
        let server = Server::read(&stage.rig.admin, stage.database.name(), stage.rig.counts_statements).await?;
        Ok(Self { at: Instant::now(), usage, server })
    }

    /// Reads them again.
    pub(crate) async fn span(&self, stage: &Stage<'_>) -> anyhow::Result<Span> {
        let now = Self::read(stage).await?;
        let mut usage = now.usage;
        for ((_, now), (_, then)) in usage.iter_mut().zip(self.usage) {
            now.cpu -= then.cpu;
        }
        Ok(Span {
            seconds: (now.at - self.at).as_secs_f64(),
            wal: now.server.wal - self.server.wal,
            commits: now.server.commits - self.server.commits,
            statements: now.server.statements.zip(self.server.statements).map(|(now, then)| now - then),
            usage,
        })
    }
}

impl Span {
    /// What each of so many jobs took.
    pub(crate) fn per_job(&self, jobs: u64) -> Counters {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let jobs = jobs.max(1) as f64;
        let mut counters = self.common();
        let mut total = 0.0;
        for (role, usage) in self.usage {
            counters.set(format!("{role}_cpu_s_per_1m_jobs"), usage.cpu / jobs * 1e6);
            total += usage.cpu / jobs * 1e6;
        }
        counters.set(TOTAL_CPU, total);
        counters.set("wal_bytes_per_job", self.wal / jobs);
        counters.set("commits_per_job", self.commits / jobs);
        if let Some(statements) = self.statements {
            counters.set("statements_per_job", statements / jobs);
        }
        counters
    }

    /// What each second took.
    pub(crate) fn per_second(&self) -> Counters {
        let mut counters = self.common();
        for (role, usage) in self.usage {
            counters.set(format!("{role}_cpu_percent"), usage.cpu / self.seconds * 100.0);
        }
        counters.set("wal_bytes_per_s", self.wal / self.seconds);
        counters.set("commits_per_s", self.commits / self.seconds);
        if let Some(statements) = self.statements {
            counters.set("statements_per_s", statements / self.seconds);
        }
        counters
    }

    /// The most memory of the schedulers, in MiB.
    pub(crate) fn scheduler_mib(&self) -> f64 {
        self.usage.iter().find(|(role, _)| *role == SCHEDULER).map_or(0.0, |(_, usage)| usage.mib)
    }

    fn common(&self) -> Counters {
        let mut counters = Counters::default();
        for (role, usage) in self.usage {
            counters.set(format!("{role}_peak_mib"), usage.mib);
        }
        counters
    }
}

impl Server {
    async fn read(admin: &Psql, database: &str, counts_statements: bool) -> anyhow::Result<Self> {
        let statements = if counts_statements { calls(database) } else { "0".to_owned() };
        let sql = format!("select pg_current_wal_lsn() - '0/0', pg_snapshot_xmax(pg_current_snapshot()), {statements}");
        let [wal, commits, statements] = admin.numbers::<3>(&sql).await?;
        Ok(Self { wal, commits, statements: counts_statements.then_some(statements) })
    }
}

fn calls(database: &str) -> String {
    format!("(select coalesce(sum(s.calls), 0) from {STATEMENTS} where d.datname = '{database}')")
}

/// Statements with their databases.
const STATEMENTS: &str = "pg_stat_statements s join pg_database d on d.oid = s.dbid";

/// Calls, mean and largest milliseconds, and bytes of WAL, of the statement that carries this name in its comment, since the database was made.
/// `None` where statements are not counted.
pub(crate) async fn statement(stage: &Stage<'_>, name: &str) -> anyhow::Result<Option<[f64; 4]>> {
    if !stage.rig.counts_statements {
        return Ok(None);
    }
    let sql = format!(
        "select coalesce(sum(s.calls), 0), coalesce(sum(s.total_exec_time) / nullif(sum(s.calls), 0), 0),
            coalesce(max(s.max_exec_time), 0), coalesce(sum(s.wal_bytes), 0)
        from {STATEMENTS}
        where d.datname = '{}' and s.query like '-- {name}' || chr(10) || '%'",
        stage.database.name()
    );
    stage.rig.admin.numbers::<4>(&sql).await.map(Some)
}
