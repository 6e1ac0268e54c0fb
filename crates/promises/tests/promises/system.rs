//! The processes of one test.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use client::{Client, ConnectOptions};
use tempfile::TempDir;
use testbed::{Process, Processes, TestDatabase, db_test, eventually, free_address, listening};
use tokio::task::JoinHandle;
use worker::{Report, Stop, Worker, WorkerBuilder};

/// Longer than anything takes that is not a matter of leases.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Lease time where a test waits for its end.
pub const SHORT_TTL: Duration = Duration::from_secs(2);

/// Where leases are not to end: a busy machine must not lose them.
const STEADY: &str = "10s";
const SHORT: &str = "2s";
const QUEUE: &str = "default";

/// A database, a folder for scripts and what they write, and processes that end with it.
pub struct System<'a> {
    pub db: &'a TestDatabase,
    pub processes: Processes,
    folder: TempDir,
}

/// A running scheduler.
pub struct Scheduler {
    pub process: Process,
    pub address: SocketAddr,
    pub metrics: SocketAddr,
}

/// A worker within the test. Stops at once when dropped.
pub struct Running {
    pub stop: Stop,
    task: JoinHandle<Result<Report, worker::Error>>,
}

/// Runs a test on a system of its own, then audits the database.
pub async fn system(test: impl AsyncFnOnce(&System<'_>)) {
    db_test(async |db| {
        let folder = TempDir::new().expect("makes a folder");
        test(&System { db, processes: Processes::new(), folder }).await;
    })
    .await;
}

impl System<'_> {
    /// A scheduler whose leases are long.
    pub async fn scheduler(&self) -> Scheduler {
        self.scheduler_with(&[("--session-ttl", STEADY)]).await
    }

    /// A scheduler whose leases end within [`SHORT_TTL`].
    pub async fn hasty_scheduler(&self) -> Scheduler {
        self.scheduler_with(&[("--session-ttl", SHORT)]).await
    }

    /// A scheduler with these flags besides the short bounds on the database.
    pub async fn scheduler_with(&self, flags: &[(&str, &str)]) -> Scheduler {
        let (address, metrics) = (free_address(), free_address());
        let process = self.start_scheduler(address, metrics, flags, &[]);
        listening(address, PATIENCE).await;
        Scheduler { process, address, metrics }
    }

    /// Starts a scheduler and waits for nothing.
    pub fn start_scheduler(
        &self,
        address: SocketAddr,
        metrics: SocketAddr,
        flags: &[(&str, &str)],
        env: &[(&str, &str)],
    ) -> Process {
        let (address, metrics) = (address.to_string(), metrics.to_string());
        let mut all = vec![
            ("--listen", address.as_str()),
            ("--metrics-listen", &metrics),
            ("--db-statement-timeout", "1s"),
            ("--db-connect-timeout", "1s"),
            ("--db-lock-timeout", "500ms"),
            ("--db-idle-timeout", "1s"),
            ("--db-hot-connections", "3"),
            ("--db-read-connections", "2"),
        ];
        all.retain(|(flag, _)| !flags.iter().any(|(own, _)| own == flag));
        let args: Vec<&str> = all.iter().chain(flags).flat_map(|(flag, value)| [*flag, *value]).collect();
        let url = self.db.url();
        let mut variables = vec![("FENCEPOST_DATABASE_URL", url.as_str())];
        variables.retain(|(name, _)| !env.iter().any(|(own, _)| own == name));
        variables.extend(env);
        self.processes.start("scheduler", &args, &variables)
    }

    /// The stock worker with a script for each kind.
    pub fn exec_worker(&self, schedulers: &[&Scheduler], scripts: &[(&str, &str)], flags: &[&str]) -> Process {
        let mut args: Vec<String> = vec!["--scheduler".to_owned(), urls(schedulers).join(",")];
        for (kind, script) in scripts {
            args.extend(["--exec".to_owned(), format!("{kind}={}", self.script(kind, script))]);
        }
        args.extend(flags.iter().map(|&flag| flag.to_owned()));
        self.processes.start("worker", &args, &[])
    }

    /// A reaper that makes a pass every 300 ms.
    pub fn reaper(&self, schedulers: &[&Scheduler], flags: &[&str]) -> Process {
        let urls = urls(schedulers).join(",");
        let args = ["--scheduler", &urls, "--period", "300ms"].into_iter().chain(flags.iter().copied());
        self.processes.start("reaper", &args.collect::<Vec<_>>(), &[])
    }

    /// A command that runs these lines in the test's folder.
    ///
    /// The shell reads the script: to execute a file fails while a fork elsewhere still has it open for writing.
    pub fn script(&self, name: &str, lines: &str) -> String {
        let path = self.path(&format!("{name}.sh"));
        let text = format!("cd {}\n{lines}\n", self.folder.path().display());
        // Another worker may be reading it.
        if fs::read_to_string(&path).ok().as_ref() != Some(&text) {
            fs::write(&path, text).expect("writes a script");
        }
        format!("sh {}", path.display())
    }

    /// A file of the test's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The lines that scripts have written into a file so far.
    pub fn lines(&self, name: &str) -> Vec<String> {
        fs::read_to_string(self.path(name)).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// Waits until scripts have written so many lines into a file.
    pub async fn wrote(&self, name: &str, lines: usize) {
        eventually(PATIENCE, &format!("{lines} lines in {name}"), async || self.lines(name).len() >= lines).await;
    }

    /// Waits until a query gives this number.
    pub async fn number_is(&self, sql: &'static str, wanted: i64) {
        eventually(PATIENCE, &format!("{wanted} from {sql}"), async || self.db.number(sql).await == wanted).await;
    }

    /// Waits until the workers of a hasty scheduler have told it of every lease they hold.
    ///
    /// A worker that dies before counts as one that the grant never reached. Heartbeats come every 667 ms; one that was
    /// under way when the grant was made does not list it.
    pub async fn held_for_sure(&self) {
        let unsure = "select count(*) from fencepost.lease l join fencepost.worker_session s using (session_no)
            where s.expires_at < l.granted_at + interval '2800 ms'";
        self.number_is(unsure, 0).await;
    }

    /// Waits until so many jobs have succeeded.
    pub async fn succeeded(&self, jobs: i64) {
        self.number_is("select count(*) from fencepost.finished where state = 'succeeded'", jobs).await;
    }

    /// Waits until so many jobs are dead.
    pub async fn dead(&self, jobs: i64) {
        self.number_is("select count(*) from fencepost.dead", jobs).await;
    }
}

impl Scheduler {
    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        client_of(&[self])
    }
}

/// A client of any of these.
pub fn client_of(schedulers: &[&Scheduler]) -> Client {
    Client::lazy(&ConnectOptions::new(urls(schedulers))).expect("valid options")
}

/// A worker of these for the queue `default`, still without handlers.
pub fn worker_of(schedulers: &[&Scheduler]) -> WorkerBuilder {
    Worker::builder().connect(ConnectOptions::new(urls(schedulers))).queues([QUEUE])
}

/// Waits until one line of a log has all of these, also after the process has ended.
pub async fn says(process: &Process, texts: &[&str]) {
    let what = format!("a line with {texts:?}");
    let says = |line: &String| texts.iter().all(|text| line.contains(text));
    eventually(PATIENCE, &what, async || process.log().iter().any(says)).await;
}

fn urls(schedulers: &[&Scheduler]) -> Vec<String> {
    schedulers.iter().map(|scheduler| scheduler.url()).collect()
}

impl Running {
    /// Starts a worker on the test's own runtime.
    pub fn start(builder: WorkerBuilder) -> Self {
        let stop = Stop::default();
        let worker = builder.build().expect("the worker's settings are valid");
        Self { task: tokio::spawn(worker.run(stop.clone())), stop }
    }

    /// Asks it to drain, and waits for its end.
    pub async fn drain(mut self) -> Report {
        self.stop.soft.cancel();
        let ended = tokio::time::timeout(PATIENCE, &mut self.task).await.expect("the drain ends");
        ended.expect("no panic").expect("no error")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.hard.cancel();
    }
}
