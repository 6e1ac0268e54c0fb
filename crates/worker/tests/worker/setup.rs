//! Workers under test.

use std::sync::Arc;
use std::time::Duration;

use client::ConnectOptions;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use worker::{Context, Error, Report, Stop, Success, Timing, Worker, WorkerBuilder};

use crate::fake::patiently;

/// A lease time that nothing in a test exceeds by accident.
pub const TTL: Duration = Duration::from_secs(5);

/// A worker that runs, and the test's hands on its handlers of kind `wait`.
pub struct Running {
    pub stop: Stop,
    worker: JoinHandle<Result<Report, Error>>,
    /// Contexts of handlers that have started.
    pub started: mpsc::Receiver<Context>,
    /// One permit lets one handler return.
    pub release: Arc<Semaphore>,
}

/// Short intervals, so that tests are short.
pub fn timing() -> Timing {
    Timing {
        ping: Duration::from_millis(100),
        silence: Duration::from_secs(1),
        open: Duration::from_secs(2),
        backoff_base: Duration::from_millis(10),
        backoff_cap: Duration::from_millis(100),
        stable: Duration::from_secs(5),
        flush: Duration::from_secs(2),
        farewell: Duration::from_secs(1),
    }
}

pub fn builder(urls: &[&str]) -> WorkerBuilder {
    Worker::builder()
        .connect(ConnectOptions::new(urls.iter().copied()))
        .queues(["q"])
        .name("w")
        .timing(timing())
        .cancel_grace(Duration::from_millis(200))
        .handler("panic", |_: Context| async { panic!("boom") })
}

/// Starts a worker with a handler of kind `wait`, which returns when it is released or cancelled.
pub fn run(builder: WorkerBuilder) -> Running {
    let (sender, started) = mpsc::channel(1_000);
    let release = Arc::new(Semaphore::new(0));
    let released = release.clone();
    let wait = move |job: Context| {
        let (sender, released) = (sender.clone(), released.clone());
        async move {
            sender.try_send(job.clone()).unwrap();
            tokio::select! {
                permit = released.acquire() => permit.unwrap().forget(),
                () = job.cancellation().cancelled() => return Err(std::io::Error::other("interrupted").into()),
            }
            Ok(Success { result: Some("done".into()), ..Success::default() })
        }
    };
    let worker = builder.handler("wait", wait).build().unwrap();
    let stop = Stop::default();
    let worker = tokio::spawn(worker.run(stop.clone()));
    Running { stop, worker, started, release }
}

impl Running {
    pub async fn started(&mut self) -> Context {
        patiently("a handler to start", self.started.recv()).await.unwrap()
    }

    pub async fn end(self) -> Result<Report, Error> {
        patiently("the worker to end", self.worker).await.unwrap()
    }

    /// Drains a worker that holds nothing.
    pub async fn finish(self, mut session: crate::fake::Session) {
        // A worker that is told to stop before it has seen its Welcome has nothing to take leave of.
        session.heartbeat().await;
        self.stop.soft.cancel();
        session.bye().await;
        session.close();
        assert_eq!(self.end().await.unwrap(), Report::default());
    }
}
