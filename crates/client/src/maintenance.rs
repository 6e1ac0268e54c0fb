//! The reaper's calls, one method each. All but the first carry the token of the maintenance lease.
//!
//! Every one may be repeated: what was done the first time is no longer there to be done.

use queue_core::{Token, WorkerName};
use queue_proto::v1;
use queue_proto::v1::maintenance_service_client::MaintenanceServiceClient;

use crate::client::Transport;
use crate::repeat::Repeat;
use crate::{Client, Error};

fn service(transport: Transport) -> MaintenanceServiceClient<Transport> {
    MaintenanceServiceClient::new(transport)
}

impl Client {
    /// Takes or renews the maintenance lease; `token` is that of the lease already held.
    pub async fn acquire_maintenance(
        &self,
        holder: &WorkerName,
        token: Option<Token>,
    ) -> Result<v1::AcquireMaintenanceResponse, Error> {
        let token = token.map_or(0, Token::get);
        self.call(Repeat::Harmless, |transport| {
            let request = v1::AcquireMaintenanceRequest { holder: holder.as_str().to_owned(), token };
            async move { service(transport).acquire_maintenance(request).await }
        })
        .await
    }

    /// Gives the maintenance lease back.
    pub async fn release_maintenance(&self, token: Token) -> Result<(), Error> {
        self.call(Repeat::Harmless, |transport| async move {
            service(transport).release_maintenance(v1::ReleaseMaintenanceRequest { token: token.get() }).await
        })
        .await
        .map(|_| ())
    }

    /// Marks a page of sessions dead whose lease time is over. Errors: [`Error::Stale`].
    pub async fn expire_sessions(
        &self,
        token: Token,
        page_size: Option<u32>,
    ) -> Result<v1::ExpireSessionsResponse, Error> {
        self.call(Repeat::Harmless, |transport| async move {
            service(transport).expire_sessions(v1::ExpireSessionsRequest { token: token.get(), page_size }).await
        })
        .await
    }

    /// Takes back a page of leases of dead sessions. Errors: [`Error::Stale`].
    pub async fn reap_leases(&self, token: Token, page_size: Option<u32>) -> Result<v1::ReapLeasesResponse, Error> {
        self.call(Repeat::Harmless, |transport| async move {
            service(transport).reap_leases(v1::ReapLeasesRequest { token: token.get(), page_size }).await
        })
        .await
    }

    /// Creates and drops partitions, removes dead sessions and expired keys. Errors: [`Error::Stale`].
    pub async fn tidy_storage(&self, token: Token) -> Result<v1::TidyStorageResponse, Error> {
        self.call(Repeat::Harmless, |transport| async move {
            service(transport).tidy_storage(v1::TidyStorageRequest { token: token.get() }).await
        })
        .await
    }

    /// Checks the storage's invariants; one line per violated one, `None` where there are too many jobs to look at.
    /// Errors: [`Error::Stale`].
    pub async fn audit(&self, token: Token) -> Result<Option<Vec<String>>, Error> {
        self.call(Repeat::Harmless, |transport| async move {
            service(transport).audit(v1::AuditRequest { token: token.get() }).await
        })
        .await
        .map(|answer| (!answer.skipped).then_some(answer.violations))
    }
}
