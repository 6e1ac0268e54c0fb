//! The reaper's service.

use std::time::Duration;

use queue_core::{Invalid, WorkerName};
use queue_proto::v1::maintenance_service_server::MaintenanceService;
use queue_proto::{millis, v1};
use queue_store::{StoreError, Warden, acquire_maintenance, audit, note_pass, release_maintenance, tidy};
use tonic::{Request, Response, Status};

use crate::reaping::Reaping;
use crate::status;

/// How long the maintenance lease lives: three periods of a reaper.
const MAINTENANCE_TTL: Duration = Duration::from_secs(15);
const MAX_PAGE: u32 = 1_000;
const DEFAULT_SESSIONS_PAGE: u32 = 1_000;
const DEFAULT_LEASES_PAGE: u32 = 500;

/// The service.
pub struct Maintenance {
    /// Reaps.
    pub reaping: Reaping,
    /// How long jobs are kept.
    pub keep_jobs: Duration,
    /// How long keys and effects are kept.
    pub keep_keys: Duration,
}

#[tonic::async_trait]
impl MaintenanceService for Maintenance {
    async fn acquire_maintenance(
        &self,
        request: Request<v1::AcquireMaintenanceRequest>,
    ) -> Result<Response<v1::AcquireMaintenanceResponse>, Status> {
        let request = request.into_inner();
        WorkerName::new(&request.holder)
            .map_err(|invalid| status::invalid(&Invalid::new("holder", invalid.problem)))?;
        let current = (request.token != 0).then_some(Warden(request.token));
        let acquired = async {
            let mut conn = self.reaping.store.vital().await?;
            acquire_maintenance(&mut conn, &request.holder, current, MAINTENANCE_TTL).await
        };
        let (warden, holder) = self.reaping.store.within(acquired).await.map_err(|error| status::store(&error))?;
        Ok(Response::new(v1::AcquireMaintenanceResponse {
            acquired: warden.is_some(),
            token: warden.map_or(0, |warden| warden.0),
            ttl: Some(millis(MAINTENANCE_TTL)),
            holder,
        }))
    }

    async fn release_maintenance(
        &self,
        request: Request<v1::ReleaseMaintenanceRequest>,
    ) -> Result<Response<v1::ReleaseMaintenanceResponse>, Status> {
        let warden = warden(request.into_inner().token)?;
        let released = async { release_maintenance(&mut *self.reaping.store.vital().await?, warden).await };
        held(self.reaping.store.within(released).await.map(|released| released.then_some(())))?;
        Ok(Response::new(v1::ReleaseMaintenanceResponse {}))
    }

    async fn expire_sessions(
        &self,
        request: Request<v1::ExpireSessionsRequest>,
    ) -> Result<Response<v1::ExpireSessionsResponse>, Status> {
        let request = request.into_inner();
        let warden = warden(request.token)?;
        let page = page(request.page_size, DEFAULT_SESSIONS_PAGE)?;
        let expired = held(self.reaping.store.within(self.reaping.expire(warden, page.into())).await)?;
        Ok(Response::new(v1::ExpireSessionsResponse {
            expired: count(expired.sessions.len()),
            lag: Some(millis(expired.lag())),
            held_back: expired.held_back,
        }))
    }

    async fn reap_leases(
        &self,
        request: Request<v1::ReapLeasesRequest>,
    ) -> Result<Response<v1::ReapLeasesResponse>, Status> {
        let request = request.into_inner();
        let warden = warden(request.token)?;
        let page = page(request.page_size, DEFAULT_LEASES_PAGE)?;
        let reaped = held(self.reaping.store.within(self.reaping.reap(warden, page.into())).await)?;
        Ok(Response::new(v1::ReapLeasesResponse {
            reaped: count(reaped.leases),
            retried: count(reaped.leases - reaped.dead),
            dead: count(reaped.dead),
        }))
    }

    async fn tidy_storage(
        &self,
        request: Request<v1::TidyStorageRequest>,
    ) -> Result<Response<v1::TidyStorageResponse>, Status> {
        self.check(request.into_inner().token).await?;
        let tidied = async { tidy(&mut *self.reaping.store.vital().await?, self.keep_jobs, self.keep_keys).await };
        let tidied = self.reaping.store.within_long(tidied).await.map_err(|error| status::store(&error))?;
        Ok(Response::new(v1::TidyStorageResponse {
            partitions_created: tidied.partitions_created.try_into().unwrap_or_default(),
            partitions_dropped: tidied.partitions_dropped.try_into().unwrap_or_default(),
            sessions_removed: tidied.sessions_removed.try_into().unwrap_or(u32::MAX),
            keys_removed: tidied.keys_removed.try_into().unwrap_or(u32::MAX),
        }))
    }

    async fn audit(&self, request: Request<v1::AuditRequest>) -> Result<Response<v1::AuditResponse>, Status> {
        self.check(request.into_inner().token).await?;
        let violations = async { audit(&mut *self.reaping.store.read().await?).await };
        let violations = self.reaping.store.within_long(violations).await.map_err(|error| status::store(&error))?;
        let skipped = violations.is_none();
        Ok(Response::new(v1::AuditResponse { violations: violations.unwrap_or_default(), skipped }))
    }
}

impl Maintenance {
    /// Only for calls that change nothing that a second warden could not change as well.
    async fn check(&self, token: i64) -> Result<(), Status> {
        let warden = warden(token)?;
        let noted = async { note_pass(&mut *self.reaping.store.vital().await?, warden).await };
        held(self.reaping.store.within(noted).await.map(|noted| noted.then_some(())))
    }
}

fn warden(token: i64) -> Result<Warden, Status> {
    if token > 0 {
        return Ok(Warden(token));
    }
    Err(Status::invalid_argument("token: must be the token of the maintenance lease"))
}

fn page(size: Option<u32>, default: u32) -> Result<u32, Status> {
    match size.unwrap_or(default) {
        size @ 1..=MAX_PAGE => Ok(size),
        size => Err(Status::invalid_argument(format!("page_size: must be 1 to {MAX_PAGE}, is {size}"))),
    }
}

fn held<T>(result: Result<Option<T>, StoreError>) -> Result<T, Status> {
    result
        .map_err(|error| status::store(&error))?
        .ok_or_else(|| Status::failed_precondition("token: the maintenance lease was lost: acquire it anew"))
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
