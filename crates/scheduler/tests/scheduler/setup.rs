//! A scheduler under test: the real binary, with bounds short enough for tests, and its callers.

use std::net::SocketAddr;
use std::time::Duration;

use queue_proto::v1::maintenance_service_client::MaintenanceServiceClient;
use queue_proto::v1::queue_service_client::QueueServiceClient;
use queue_proto::v1::work_service_client::WorkServiceClient;
use queue_proto::v1::{self, JobState};
use serde_json::Value;
use testbed::{Process, Processes, TestDatabase, db_test, eventually, free_address};
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// Nothing in these tests takes so long unless it is broken.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Room for what a client receives.
pub const MESSAGE_BYTES: usize = 64 << 20;

/// What every scheduler under test is told unless a flag says otherwise. Sessions live long: a hand on a busy machine is slow.
const QUICK: [(&str, &str); 9] = [
    ("FENCEPOST_SESSION_TTL", "10s"),
    ("FENCEPOST_GRANT_ACK_TIMEOUT", "1500ms"),
    ("FENCEPOST_DB_STATEMENT_TIMEOUT", "1s"),
    ("FENCEPOST_DB_CONNECT_TIMEOUT", "1s"),
    ("FENCEPOST_DB_LOCK_TIMEOUT", "500ms"),
    ("FENCEPOST_DB_IDLE_TIMEOUT", "1s"),
    ("FENCEPOST_DB_HOT_CONNECTIONS", "3"),
    ("FENCEPOST_DB_READ_CONNECTIONS", "2"),
    ("FENCEPOST_LOG_FORMAT", "json"),
];

/// For tests that wait for the end of a session's time.
pub const SHORT: [&str; 2] = ["--session-ttl", "2s"];

/// A running scheduler. Killed when dropped.
pub struct Scheduler {
    pub process: Process,
    pub address: SocketAddr,
    queue: QueueServiceClient<Channel>,
    _processes: Processes,
}

/// Runs a test with a database and a scheduler of its own; the audit follows.
pub async fn with_scheduler(test: impl AsyncFnOnce(&TestDatabase, &Scheduler)) {
    with_flags(&[], test).await;
}

/// As [`with_scheduler`], with flags.
pub async fn with_flags(flags: &[&str], test: impl AsyncFnOnce(&TestDatabase, &Scheduler)) {
    db_test(async |db| {
        let scheduler = Scheduler::start(&db.url(), flags).await;
        test(db, &scheduler).await;
    })
    .await;
}

/// Starts the binary without waiting for anything. `None` where it shall find no database in its environment.
pub fn launch(url: Option<&str>, address: SocketAddr, flags: &[&str]) -> (Processes, Process) {
    let processes = Processes::new();
    let listen = address.to_string();
    let mut arguments = vec!["serve"];
    if !flags.contains(&"--listen") {
        arguments.extend(["--listen", &listen]);
    }
    arguments.extend(flags);
    let mut env = QUICK.to_vec();
    env.extend(url.map(|url| ("FENCEPOST_DATABASE_URL", url)));
    let process = processes.start("scheduler", &arguments, &env);
    (processes, process)
}

impl Scheduler {
    /// Starts one and waits until it serves.
    pub async fn start(url: &str, flags: &[&str]) -> Self {
        let address = free_address();
        let (processes, process) = launch(Some(url), address, flags);
        let mut scheduler = Self::of(processes, process, address);
        scheduler.process.logged("scheduler serves", PATIENCE).await;
        scheduler
    }

    /// One that was launched, which may not serve yet.
    pub fn of(processes: Processes, process: Process, address: SocketAddr) -> Self {
        let queue = QueueServiceClient::new(channel(address)).max_decoding_message_size(MESSAGE_BYTES);
        Self { process, address, queue, _processes: processes }
    }

    /// A producer's client, over a connection that all of them share.
    pub fn queue(&self) -> QueueServiceClient<Channel> {
        self.queue.clone()
    }

    /// A worker's client, over a connection of its own.
    pub fn work(&self) -> WorkServiceClient<Channel> {
        WorkServiceClient::new(channel(self.address)).max_decoding_message_size(MESSAGE_BYTES)
    }

    /// A reaper's client.
    pub fn maintenance(&self) -> MaintenanceServiceClient<Channel> {
        MaintenanceServiceClient::new(channel(self.address))
    }

    /// Enqueues a job, whatever comes of it.
    pub async fn try_enqueue(&self, job: v1::NewJob) -> Result<v1::EnqueueResponse, Status> {
        let request = v1::EnqueueRequest { job: Some(job) };
        let answer = timeout(PATIENCE, async { self.queue().enqueue(request).await }).await;
        answer.expect("an answer in time").map(tonic::Response::into_inner)
    }

    /// Enqueues a new job and returns its identity.
    pub async fn enqueue(&self, job: v1::NewJob) -> i64 {
        let answer = self.try_enqueue(job).await.expect("the job is stored");
        assert!(!answer.duplicate, "the job is new");
        answer.job_id
    }

    /// Enqueues a batch, which as a whole must be accepted.
    pub async fn batch(&self, jobs: Vec<v1::NewJob>) -> Vec<v1::enqueue_result::Result> {
        let answer = self.queue().enqueue_batch(v1::EnqueueBatchRequest { jobs }).await.expect("the batch is accepted");
        answer.into_inner().results.into_iter().map(|result| result.result.expect("each job is answered")).collect()
    }

    /// Enqueues a batch of new jobs and returns their identities.
    pub async fn enqueue_all(&self, jobs: Vec<v1::NewJob>) -> Vec<i64> {
        let stored = |result| match result {
            v1::enqueue_result::Result::Enqueued(answer) => answer.job_id,
            v1::enqueue_result::Result::Error(error) => panic!("the job is stored: {error:?}"),
        };
        self.batch(jobs).await.into_iter().map(stored).collect()
    }

    /// A job as GetJob shows it.
    pub async fn job(&self, job_id: i64) -> v1::Job {
        let answer = self.queue().get_job(v1::GetJobRequest { job_id }).await.expect("the job is there");
        answer.into_inner().job.expect("a job")
    }

    /// Where a job is.
    pub async fn state(&self, job: i64) -> JobState {
        self.job(job).await.state()
    }

    /// Waits until a job is in a state.
    pub async fn reaches(&self, job: i64, state: JobState) {
        let what = format!("job {job} is {state:?}");
        eventually(PATIENCE, &what, async || self.state(job).await == state).await;
    }

    /// What one queue holds.
    pub async fn stats(&self, queue: &str) -> v1::QueueStats {
        let request = v1::GetQueueStatsRequest { queues: vec![queue.to_owned()] };
        let answer = self.queue().get_queue_stats(request).await.expect("statistics").into_inner();
        answer.queues.into_iter().next().expect("the queue is known")
    }

    /// Lines of its log with this message, as the JSON that they are.
    pub fn lines(&self, message: &str) -> Vec<Value> {
        let parsed = self.process.log().into_iter().filter_map(|line| serde_json::from_str::<Value>(&line).ok());
        parsed.filter(|line| line["message"] == message).collect()
    }

    /// Waits until there are at least so many of them.
    pub async fn says(&self, message: &str, count: usize) -> Vec<Value> {
        let what = format!("{count} lines say {message:?}");
        eventually(PATIENCE, &what, async || self.lines(message).len() >= count).await;
        self.lines(message)
    }

    /// Makes a pass of a reaper; returns expired sessions and reaped leases.
    pub async fn reap(&self) -> (u32, u32) {
        let mut maintenance = self.maintenance();
        let mut token = 0;
        // A scheduler that stands in for the reaper may hold the lease for a moment.
        eventually(PATIENCE, "the maintenance lease is free", async || {
            let request = v1::AcquireMaintenanceRequest { holder: "test".to_owned(), token: 0 };
            let lease = self.maintenance().acquire_maintenance(request).await.expect("answers").into_inner();
            token = lease.token;
            lease.acquired
        })
        .await;
        let expired = maintenance.expire_sessions(v1::ExpireSessionsRequest { token, page_size: None }).await;
        let reaped = maintenance.reap_leases(v1::ReapLeasesRequest { token, page_size: None }).await;
        maintenance.release_maintenance(v1::ReleaseMaintenanceRequest { token }).await.expect("releases");
        (expired.expect("expires").into_inner().expired, reaped.expect("reaps").into_inner().reaped)
    }
}

/// A connection that is made when it is first used.
pub fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).expect("a URL").connect_lazy()
}

/// A job of a queue and kind, with a small payload.
pub fn job(queue: &str, kind: &str) -> v1::NewJob {
    v1::NewJob { queue: queue.to_owned(), kind: kind.to_owned(), payload: "{}".into(), ..v1::NewJob::default() }
}

/// The same with an idempotency key.
pub fn keyed(queue: &str, kind: &str, key: &str) -> v1::NewJob {
    v1::NewJob { idempotency_key: Some(key.to_owned()), ..job(queue, kind) }
}
