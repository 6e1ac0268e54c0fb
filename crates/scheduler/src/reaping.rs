//! The work of a reaping pass, whoever makes it: a reaper through its service, or this scheduler itself.

use std::sync::Arc;

use queue_core::AttemptEnd;
use queue_store::{
    Expired, Hint, Registry, Store, StoreError, Transaction, Warden, expire_sessions, finish_pass, note_pass,
    reap_page, release_maintenance,
};

use crate::ready::Ready;
use crate::timing::Timing;
use crate::{metrics, obituary};

/// Sessions and leases of one page of a pass that is made here.
const PAGE: i64 = 500;

/// What was taken back at once.
pub struct Page {
    /// Leases.
    pub leases: usize,
    /// Of these, those whose jobs are dead now.
    pub dead: usize,
}

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
        let expired = expire_sessions(&mut conn, warden, limit, self.timing.ttl, self.timing.gap).await?;
        if let Some(expired) = &expired {
            obituary::expired(expired.sessions.iter());
        }
        Ok(expired)
    }

    /// Reaps the next page, or ends the pass if there is nothing to reap. `None`: the warden has lost its lease.
    pub async fn reap(&self, warden: Warden, limit: i64) -> Result<Option<Page>, StoreError> {
        // The connection goes back first: a page takes one of its own.
        let finished = finish_pass(&mut *self.store.vital().await?, warden, false).await?;
        match finished {
            None => Ok(None),
            Some(true) => Ok(Some(Page { leases: 0, dead: 0 })),
            Some(false) => self.page(warden, limit).await,
        }
    }

    async fn page(&self, warden: Warden, limit: i64) -> Result<Option<Page>, StoreError> {
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
        if i64::try_from(reaped.leases).unwrap_or(limit) < limit {
            // The last page of a pass, though leases that others have locked may be left.
            note_pass(&mut conn, warden).await?;
        }
        Ok(Some(Page { leases: reaped.leases, dead: reaped.dead.len() }))
    }

    /// Makes a whole pass, as a reaper would ask for it page by page, and gives the maintenance lease back.
    pub async fn pass(&self, warden: Warden) -> Result<(), StoreError> {
        self.expire(warden, PAGE).await?;
        while finish_pass(&mut *self.store.vital().await?, warden, true).await? == Some(false) {
            let page = self.page(warden, PAGE).await?;
            if page.is_none_or(|page| i64::try_from(page.leases).unwrap_or(PAGE) < PAGE) {
                release_maintenance(&mut *self.store.vital().await?, warden).await?;
                break;
            }
        }
        Ok(())
    }
}
