//! The work of a reaping pass, whoever makes it: a reaper through its service, or this scheduler itself.

use std::sync::Arc;

use queue_core::AttemptEnd;
use queue_store::{
    Expired, Hint, Registry, Store, StoreError, Transaction, Warden, expire_sessions, expired_here, note_pass,
    reap_page,
};

use crate::ready::Ready;
use crate::timing::Timing;
use crate::{metrics, obituary};

/// Sessions and leases of one page of a pass that is made here.
const PAGE: i64 = 500;

/// What reaping needs.
#[derive(Clone)]
pub struct Reaping {
    /// The database.
    pub store: Store,
    /// Names of queues and kinds.
    pub registry: Arc<Registry>,
    /// Is told what is ready again.
    pub ready: Ready,
    /// Intervals.
    pub timing: Timing,
}

impl Reaping {
    /// Marks sessions dead whose time is over. `None`: the warden has lost its lease.
    pub async fn expire(&self, warden: Warden, limit: i64) -> Result<Option<Expired>, StoreError> {
        let mut conn = self.store.vital().await?;
        let mut tx = Transaction::begin(&mut conn).await?;
        let expired = expire_sessions(tx.conn(), warden, limit, self.timing.ttl, self.timing.gap).await?;
        let any = expired.is_some_and(|expired| expired.sessions > 0);
        let sessions = if any { expired_here(tx.conn()).await? } else { Vec::new() };
        tx.commit().await?;
        obituary::expired(&sessions);
        Ok(expired)
    }

    /// Reaps one page: leases taken back, and of these the jobs that are dead. `None`: the warden has lost its lease.
    pub async fn page(&self, warden: Warden, limit: i64) -> Result<Option<(usize, usize)>, StoreError> {
        let mut conn = self.store.vital().await?;
        let mut tx = Transaction::begin(&mut conn).await?;
        let Some(reaped) = reap_page(tx.conn(), warden, limit, &|lane| self.ready.low(lane)).await? else {
            return Ok(None);
        };
        tx.commit().await?;
        if reaped.leases > 0 {
            tracing::info!(leases = reaped.leases, dead = reaped.dead.len(), "leases of dead sessions taken back");
        }
        metrics::ended(AttemptEnd::Lost, reaped.leases);
        obituary::dead(&self.registry, &reaped.dead);
        self.ready.tell(reaped.lanes.into_iter().map(Hint::anywhere));
        Ok(Some((reaped.leases, reaped.dead.len())))
    }

    /// Makes a whole pass, as a reaper would ask for it page by page.
    pub async fn pass(&self, warden: Warden) -> Result<(), StoreError> {
        self.expire(warden, PAGE).await?;
        while let Some((leases, _)) = self.page(warden, PAGE).await? {
            if i64::try_from(leases).unwrap_or(PAGE) < PAGE {
                break;
            }
        }
        note_pass(&mut *self.store.vital().await?, warden).await?;
        Ok(())
    }
}
