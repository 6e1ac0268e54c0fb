//! A scheduler on a test's database, and what runs beside it.

use client::{Client, ConnectOptions, v1};
use queue_core::{JobId, KindName, NewJob, QueueName};
use testbed::{PATIENCE, Process, Processes, TestDatabase, eventually, free_address, listening};

/// Running programs, with all they started. Ended when dropped.
pub struct Stage {
    _scheduler: Process,
    processes: Processes,
    address: String,
}

impl Stage {
    /// Starts a scheduler, and waits until it listens.
    pub async fn start(db: &TestDatabase) -> Self {
        let (processes, address, url) = (Processes::new(), free_address(), db.url());
        let environment = [("FENCEPOST_DATABASE_URL", url.as_str())];
        let scheduler = processes.start("scheduler", &["serve", "--listen", &address.to_string()], &environment);
        listening(address, PATIENCE).await;
        Self { _scheduler: scheduler, processes, address: address.to_string() }
    }

    /// Host and port of the scheduler.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// URL of the scheduler.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A stock worker with these flags.
    pub fn worker(&self, flags: &[&str]) -> Process {
        let url = self.url();
        self.processes.start("worker", &[&["--scheduler", &url], flags].concat(), &[])
    }

    /// A program of `sh`, which ends with the others.
    pub fn shell(&self, script: &str) -> Process {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", script]);
        self.processes.spawn(script, shell)
    }

    /// For enqueues and looks.
    pub fn client(&self) -> Client {
        Client::lazy(&ConnectOptions::new([self.url()])).expect("a URL")
    }

    /// Enqueues a job, and waits until it is in the state.
    pub async fn job_in(&self, state: v1::JobState, job: NewJob) -> JobId {
        let client = self.client();
        let id = client.enqueue(job).await.expect("enqueues").job_id;
        let is = async || client.job(id).await.expect("the job is known").state() == state;
        eventually(PATIENCE, &format!("job {id} is {state:?}"), is).await;
        id
    }
}

/// A job of the queue `default` with a key.
pub fn job(kind: &str, key: &str) -> NewJob {
    let job = NewJob::new(QueueName::new("default").expect("a name"), KindName::new(kind).expect("a name"), "hello");
    job.with_key(key).expect("a key")
}
