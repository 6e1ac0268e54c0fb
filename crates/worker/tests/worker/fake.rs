//! A scheduler that the test plays: it speaks the protocol over a real socket and stores nothing.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use queue_proto::millis;
use queue_proto::v1::work_service_server::{WorkService, WorkServiceServer};
use queue_proto::v1::{self, WorkRequest, WorkResponse, work_request, work_response};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

/// Nothing in these tests takes so long unless it is broken.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How often a played scheduler says that it is alive.
const PING: Duration = Duration::from_millis(100);
const BUFFER: usize = 1_024;

/// A played scheduler, on a thread and runtime of its own so that blocking handlers do not stop it.
pub struct Fake {
    pub url: String,
    sessions: mpsc::Receiver<Session>,
    refuse: Arc<std::sync::Mutex<Option<Status>>>,
    stop: CancellationToken,
}

/// One stream of a worker, after its Hello and before its Welcome.
pub struct Session {
    pub hello: v1::Hello,
    requests: mpsc::Receiver<work_request::Message>,
    responses: mpsc::Sender<Result<WorkResponse, Status>>,
    quiet: Arc<AtomicBool>,
    renewing: Arc<AtomicBool>,
    ttl: Arc<std::sync::Mutex<Duration>>,
    pace: Arc<std::sync::Mutex<Option<Duration>>>,
    closed: CancellationToken,
    /// The last total of credits.
    pub credit: u64,
}

#[derive(Clone)]
struct Service {
    sessions: mpsc::Sender<Session>,
    refuse: Arc<std::sync::Mutex<Option<Status>>>,
}

impl Fake {
    pub fn start() -> Self {
        let (sender, sessions) = mpsc::channel(16);
        let (told, address) = std::sync::mpsc::channel();
        let stop = CancellationToken::new();
        let refuse = Arc::new(std::sync::Mutex::new(None));
        let (stopped, service) = (stop.clone(), Service { sessions: sender, refuse: refuse.clone() });
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                told.send(listener.local_addr().unwrap()).unwrap();
                let server = Server::builder()
                    .add_service(WorkServiceServer::new(service).max_decoding_message_size(64 << 20))
                    .serve_with_incoming(TcpListenerStream::new(listener));
                // Dropped at once, connections and all, like a process that is killed.
                tokio::select! { () = stopped.cancelled() => {} result = server => result.unwrap() }
            });
        });
        let url = format!("http://{}", address.recv().unwrap());
        Self { url, sessions, refuse, stop }
    }

    /// The next stream.
    pub async fn accept(&mut self) -> Session {
        patiently("a stream", self.sessions.recv()).await.expect("the fake has stopped")
    }

    /// The next stream, welcomed with a lease time of `ttl`.
    pub async fn welcome(&mut self, ttl: Duration) -> Session {
        let session = self.accept().await;
        session.welcome(ttl, Vec::new()).await;
        session
    }

    /// Answers every new stream so.
    pub fn refuse(&self, status: Option<Status>) {
        *self.refuse.lock().unwrap() = status;
    }

    /// Dies, with all its connections.
    pub fn kill(&self) {
        self.stop.cancel();
    }

    /// Whether another stream was opened.
    pub fn has_another(&mut self) -> bool {
        self.sessions.try_recv().is_ok()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.kill();
    }
}

#[tonic::async_trait]
impl WorkService for Service {
    type WorkStream = ReceiverStream<Result<WorkResponse, Status>>;

    async fn work(&self, request: Request<Streaming<WorkRequest>>) -> Result<Response<Self::WorkStream>, Status> {
        if let Some(status) = self.refuse.lock().unwrap().clone() {
            return Err(status);
        }
        let mut stream = request.into_inner();
        let first = stream.message().await?.and_then(|request| request.message);
        let Some(work_request::Message::Hello(hello)) = first else { panic!("the first message is no hello") };
        let (responses, answers) = mpsc::channel(BUFFER);
        let (heard, requests) = mpsc::channel(BUFFER);
        let session = Session {
            hello,
            requests,
            responses: responses.clone(),
            quiet: Arc::new(AtomicBool::new(true)),
            renewing: Arc::new(AtomicBool::new(true)),
            ttl: Arc::default(),
            pace: Arc::default(),
            closed: CancellationToken::new(),
            credit: 0,
        };
        let (quiet, renewing, ttl) = (session.quiet.clone(), session.renewing.clone(), session.ttl.clone());
        let (pace, closed) = (session.pace.clone(), session.closed.clone());
        tokio::spawn(async move {
            loop {
                let message = tokio::select! {
                    () = closed.cancelled() => return,
                    message = stream.message() => message,
                    () = tokio::time::sleep(PING) => {
                        say(&responses, &quiet, work_response::Message::Ping(v1::Ping {})).await;
                        continue;
                    }
                };
                let Ok(Some(WorkRequest { message: Some(message) })) = message else { return };
                if let work_request::Message::Heartbeat(beat) = &message
                    && renewing.load(Ordering::SeqCst)
                {
                    let lease_ttl = Some(millis(*ttl.lock().unwrap()));
                    let next_heartbeat = pace.lock().unwrap().map(millis);
                    let renewed = v1::Renewed { sequence: beat.sequence, lease_ttl, lost: Vec::new(), next_heartbeat };
                    say(&responses, &quiet, work_response::Message::Renewed(renewed)).await;
                }
                // The test may not look any more.
                let _ = heard.try_send(message);
            }
        });
        self.sessions.send(session).await.map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

async fn say(
    responses: &mpsc::Sender<Result<WorkResponse, Status>>,
    quiet: &AtomicBool,
    message: work_response::Message,
) {
    if !quiet.load(Ordering::SeqCst) {
        let _ = responses.send(Ok(WorkResponse { message: Some(message) })).await;
    }
}

impl Session {
    pub async fn welcome(&self, ttl: Duration, lost: Vec<v1::LeaseRef>) {
        self.welcome_to_beat((ttl / 10).min(PING), ttl, lost).await;
    }

    pub async fn welcome_to_beat(&self, interval: Duration, ttl: Duration, lost: Vec<v1::LeaseRef>) {
        *self.ttl.lock().unwrap() = ttl;
        self.send(work_response::Message::Welcome(v1::Welcome {
            heartbeat_interval: Some(millis(interval)),
            lease_ttl: Some(millis(ttl)),
            server_build: "played".to_owned(),
            lost,
            max_payload_bytes: 1 << 20,
        }))
        .await;
        self.quiet.store(false, Ordering::SeqCst);
    }

    pub async fn send(&self, message: work_response::Message) {
        self.responses.send(Ok(WorkResponse { message: Some(message) })).await.unwrap();
    }

    /// Ends the stream with a status.
    pub async fn end(self, status: Status) {
        self.responses.send(Err(status)).await.unwrap();
    }

    /// Says nothing any more, with the connection left open.
    pub fn fall_silent(&self) {
        self.quiet.store(true, Ordering::SeqCst);
    }

    /// Lives, but renews nothing, like a scheduler without its database.
    pub fn stop_renewing(&self) {
        self.renewing.store(false, Ordering::SeqCst);
    }

    /// Asks in each answer for the next heartbeat after so long.
    pub fn pace(&self, next: Duration) {
        *self.pace.lock().unwrap() = Some(next);
    }

    pub async fn grant(&self, grants: impl IntoIterator<Item = v1::Grant>) {
        self.send(work_response::Message::Grants(v1::Grants { grants: grants.into_iter().collect() })).await;
    }

    pub async fn ack(&self, job_id: i64, token: i64, verdict: v1::SettleVerdict, reason: &str) {
        let ack = v1::SettleAck { job_id, token, verdict: verdict.into(), reason: reason.to_owned(), effect: 0 };
        self.send(work_response::Message::SettleAcks(v1::SettleAcks { acks: vec![ack] })).await;
    }

    pub async fn applied(&self, job: i64) {
        self.ack(job, job * 10, v1::SettleVerdict::Applied, "").await;
    }

    pub async fn lose(&self, job: i64) {
        let lost = vec![lease(job)];
        let lease_ttl = Some(millis(*self.ttl.lock().unwrap()));
        self.send(work_response::Message::Renewed(v1::Renewed { sequence: 0, lease_ttl, lost, next_heartbeat: None }))
            .await;
    }

    /// The next message that `pick` wants.
    pub async fn until<T>(&mut self, what: &str, mut pick: impl FnMut(work_request::Message) -> Option<T>) -> T {
        let search = async {
            while let Some(message) = self.requests.recv().await {
                if let work_request::Message::Credit(credit) = &message {
                    self.credit = credit.total;
                }
                if let Some(found) = pick(message) {
                    return found;
                }
            }
            panic!("the stream ended before {what}")
        };
        patiently(what, search).await
    }

    /// The next result; acknowledged by the test, if at all.
    pub async fn settlement(&mut self) -> v1::Settlement {
        self.until("a settlement", |message| match message {
            work_request::Message::Settle(settle) => settle.settlements.into_iter().next(),
            _ => None,
        })
        .await
    }

    /// The next result, of this job, acknowledged as applied.
    pub async fn applied_outcome(&mut self, job: i64) -> v1::settlement::Outcome {
        let settlement = self.settlement().await;
        assert_eq!((settlement.job_id, settlement.token), (job, job * 10));
        self.applied(job).await;
        settlement.outcome.unwrap()
    }

    /// The next heartbeat but the one that may be under way.
    pub async fn fresh_heartbeat(&mut self) -> v1::Heartbeat {
        self.heartbeat().await;
        self.heartbeat().await
    }

    pub async fn heartbeat(&mut self) -> v1::Heartbeat {
        self.until("a heartbeat", |message| match message {
            work_request::Message::Heartbeat(beat) => Some(beat),
            _ => None,
        })
        .await
    }

    /// Waits until the total of credits is `total`.
    pub async fn credited(&mut self, total: u64) {
        if self.credit < total {
            self.until("credit", |message| match message {
                work_request::Message::Credit(credit) => (credit.total >= total).then_some(()),
                _ => None,
            })
            .await;
        }
        assert_eq!(self.credit, total);
    }

    /// Waits until the worker has said that it drains.
    pub async fn draining(&mut self) {
        self.until("draining", |message| matches!(message, work_request::Message::Draining(_)).then_some(())).await;
    }

    /// Waits until the worker has said farewell.
    pub async fn bye(&mut self) {
        self.until("bye", |message| matches!(message, work_request::Message::Bye(_)).then_some(())).await;
    }

    /// Ends the stream well, as a scheduler does after a farewell.
    pub fn close(self) {
        self.closed.cancel();
    }
}

/// A lease of job `job`: its token is ten times the number, for readability.
pub fn lease(job: i64) -> v1::LeaseRef {
    v1::LeaseRef { job_id: job, token: job * 10 }
}

/// A grant of job `job` of kind `kind`.
pub fn grant(job: i64, kind: &str) -> v1::Grant {
    v1::Grant {
        job_id: job,
        token: job * 10,
        attempt: 1,
        max_attempts: 5,
        queue: "q".to_owned(),
        kind: kind.to_owned(),
        timeout: Some(millis(PATIENCE)),
        ..v1::Grant::default()
    }
}

/// The result of a future, or a failed test if it takes unreasonably long.
pub async fn patiently<T>(what: &str, future: impl Future<Output = T>) -> T {
    let future: Pin<Box<dyn Future<Output = T>>> = Box::pin(future);
    let result = tokio::time::timeout(PATIENCE, future).await;
    result.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}
