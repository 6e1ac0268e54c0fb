//! A maintenance service whose storage is two numbers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use queue_proto::millis;
use queue_proto::v1;
use queue_proto::v1::maintenance_service_server::{MaintenanceService, MaintenanceServiceServer};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

pub const LAG: Duration = Duration::from_millis(2_500);

/// What the service knows and saw. Tests change it while it serves.
#[derive(Default)]
pub struct Storage {
    pub sessions: u32,
    pub leases: u32,
    pub violations: Vec<String>,
    /// Calls answered with this status instead.
    pub failing: HashMap<&'static str, Code>,
    /// Fired when the first page of leases is asked for.
    pub on_reap: Option<CancellationToken>,
    /// Of the maintenance lease.
    pub ttl: Option<Duration>,
    /// Fencing token and holder; the last token is never reused.
    pub held: Option<(i64, String)>,
    pub last_token: i64,
    /// Names of the calls, in order.
    pub calls: Vec<&'static str>,
    /// Headers that came with them.
    pub authorizations: Vec<String>,
}

#[derive(Clone)]
pub struct Fake {
    storage: Arc<Mutex<Storage>>,
    seen: watch::Sender<usize>,
    pub address: String,
}

impl Fake {
    pub async fn start(storage: Storage) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let fake = Self { storage: Arc::new(Mutex::new(storage)), seen: watch::Sender::new(0), address };
        let server = Server::builder().add_service(MaintenanceServiceServer::new(fake.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        fake
    }

    pub fn storage(&self) -> MutexGuard<'_, Storage> {
        self.storage.lock().unwrap()
    }

    pub fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.storage().calls)
    }

    /// Waits until a call has come after which this holds.
    pub async fn until(&self, holds: impl Fn(&Storage) -> bool) {
        let mut seen = self.seen.subscribe();
        let wait = async {
            while !holds(&self.storage()) {
                seen.changed().await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect("the condition in time");
    }

    /// Notes the call; fails it if it is to fail, or if it carries another token than the lease's.
    fn enter<T>(&self, name: &'static str, request: &Request<T>, token: Option<i64>) -> Result<(), Status> {
        let mut storage = self.storage();
        storage.calls.push(name);
        let header = request.metadata().get("authorization").map(|value| value.to_str().unwrap().to_owned());
        storage.authorizations.extend(header);
        let failing = storage.failing.get(name).copied();
        let stale = token.is_some() && token != storage.held.as_ref().map(|held| held.0);
        drop(storage);
        self.seen.send_modify(|seen| *seen += 1);
        match failing {
            Some(code) => Err(Status::new(code, "told to fail")),
            None if stale => Err(Status::failed_precondition("stale token")),
            None => Ok(()),
        }
    }
}

fn take(left: &mut u32, page_size: Option<u32>) -> u32 {
    let taken = page_size.expect("the reaper says its page size").min(*left);
    *left -= taken;
    taken
}

#[tonic::async_trait]
impl MaintenanceService for Fake {
    async fn acquire_maintenance(
        &self,
        request: Request<v1::AcquireMaintenanceRequest>,
    ) -> Result<Response<v1::AcquireMaintenanceResponse>, Status> {
        self.enter("acquire", &request, None)?;
        let asked = request.into_inner();
        let mut storage = self.storage();
        let (token, holder) = match &storage.held {
            Some(held) => held.clone(),
            None => (storage.last_token + 1, asked.holder.clone()),
        };
        let acquired = storage.held.is_none() || asked.token == token;
        storage.last_token = token;
        storage.held = Some((token, holder.clone()));
        let ttl = storage.ttl.unwrap_or(Duration::from_secs(15));
        let token = if acquired { token } else { 0 };
        Ok(Response::new(v1::AcquireMaintenanceResponse { acquired, token, ttl: Some(millis(ttl)), holder }))
    }

    async fn release_maintenance(
        &self,
        request: Request<v1::ReleaseMaintenanceRequest>,
    ) -> Result<Response<v1::ReleaseMaintenanceResponse>, Status> {
        self.enter("release", &request, Some(request.get_ref().token))?;
        self.storage().held = None;
        self.seen.send_modify(|seen| *seen += 1);
        Ok(Response::new(v1::ReleaseMaintenanceResponse {}))
    }

    async fn expire_sessions(
        &self,
        request: Request<v1::ExpireSessionsRequest>,
    ) -> Result<Response<v1::ExpireSessionsResponse>, Status> {
        self.enter("expire", &request, Some(request.get_ref().token))?;
        let expired = take(&mut self.storage().sessions, request.get_ref().page_size);
        let lag = (expired > 0).then(|| millis(LAG));
        Ok(Response::new(v1::ExpireSessionsResponse { expired, lag, held_back: false }))
    }

    async fn reap_leases(
        &self,
        request: Request<v1::ReapLeasesRequest>,
    ) -> Result<Response<v1::ReapLeasesResponse>, Status> {
        self.enter("reap", &request, Some(request.get_ref().token))?;
        let mut storage = self.storage();
        let reaped = take(&mut storage.leases, request.get_ref().page_size);
        if let Some(stop) = storage.on_reap.take() {
            stop.cancel();
        }
        Ok(Response::new(v1::ReapLeasesResponse { reaped, retried: reaped - reaped / 10, dead: reaped / 10 }))
    }

    async fn tidy_storage(
        &self,
        request: Request<v1::TidyStorageRequest>,
    ) -> Result<Response<v1::TidyStorageResponse>, Status> {
        self.enter("tidy", &request, Some(request.get_ref().token))?;
        Ok(Response::new(v1::TidyStorageResponse { partitions_created: 2, ..Default::default() }))
    }

    async fn audit(&self, request: Request<v1::AuditRequest>) -> Result<Response<v1::AuditResponse>, Status> {
        self.enter("audit", &request, Some(request.get_ref().token))?;
        Ok(Response::new(v1::AuditResponse { violations: self.storage().violations.clone(), skipped: false }))
    }
}
