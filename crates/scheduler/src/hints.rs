//! Hints between schedulers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use queue_store::{Hint, HintListener, Lane, Registry, Store, StoreError, notify};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{batch, dispatcher};

/// Hints of that long go out together.
const GATHER: Duration = Duration::from_millis(10);
/// A listener that heard nothing for so long is asked for a sign of life.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// How long that may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(3);

/// Tells other schedulers which lanes got jobs.
#[derive(Clone, Default)]
pub struct Handle(Arc<Pending>);

#[derive(Default)]
struct Pending {
    /// The lowest position told of each lane.
    lanes: Mutex<HashMap<Lane, i64>>,
    wake: Notify,
    alone: AtomicBool,
}

impl Handle {
    /// These lanes got jobs. Without other schedulers nobody is told.
    pub fn tell(&self, hints: &[Hint]) {
        if hints.is_empty() || self.is_alone() {
            return;
        }
        let mut lanes = self.0.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        for hint in hints {
            let from = lanes.entry(hint.lane).or_insert(hint.from);
            *from = hint.from.min(*from);
        }
        drop(lanes);
        self.0.wake.notify_one();
    }

    /// Whether other schedulers live is known anew.
    pub fn set_alone(&self, alone: bool) {
        self.0.alone.store(alone, Ordering::Relaxed);
    }

    /// Whether no other scheduler was alive at the last beat.
    pub fn is_alone(&self) -> bool {
        self.0.alone.load(Ordering::Relaxed)
    }

    /// Sends hints until told to stop.
    pub async fn send(self, store: Store, stop: CancellationToken) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                () = self.0.wake.notified() => {}
                () = stop.cancelled() => return Ok(()),
            }
            sleep(GATHER).await;
            let lanes = std::mem::take(&mut *self.0.lanes.lock().unwrap_or_else(PoisonError::into_inner));
            let hints: Vec<Hint> = lanes.into_iter().map(|(lane, from)| Hint { lane, from }).collect();
            let sent = async { notify(&mut *store.vital().await?, &hints).await };
            if let Err(error) = store.within(sent).await {
                batch::complain("a hint", &error);
            }
        }
    }
}

/// Receives hints until told to stop. A connection that was lost means that hints were.
pub async fn receive(
    store: Store,
    registry: Arc<Registry>,
    dispatcher: dispatcher::Handle,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut patience = batch::Patience::default();
    loop {
        let ended = tokio::select! {
            ended = listen(&store, &registry, &dispatcher, &mut patience) => ended,
            () = stop.cancelled() => return Ok(()),
        };
        if let Err(error) = ended {
            batch::complain("listening for hints", &error);
        }
        patience.wait().await;
    }
}

async fn listen(
    store: &Store,
    registry: &Registry,
    dispatcher: &dispatcher::Handle,
    patience: &mut batch::Patience,
) -> Result<(), StoreError> {
    let mut listener = store.within(HintListener::open(store)).await?;
    *patience = batch::Patience::default();
    // What came while nobody listened.
    store.within(reload(store, registry)).await?;
    dispatcher.doubt(&registry.lanes());
    dispatcher.learn(&registry.lanes());
    loop {
        let Ok(heard) = timeout(CHECK_INTERVAL, listener.next()).await else {
            // Nothing was said for a while: nothing to say, or a connection that is silently cut.
            if timeout(CHECK_TIMEOUT, listener.check()).await.is_ok_and(|checked| checked.is_ok()) {
                continue;
            }
            tracing::warn!("the connection that listens for hints is dead; opening another");
            return Ok(());
        };
        let Some(hints) = heard? else { return Ok(()) };
        let unnamed = |lane: Lane| registry.queue_name(lane.queue).is_none() || registry.kind_name(lane.kind).is_none();
        if hints.iter().any(|hint| unnamed(hint.lane)) {
            store.within(reload(store, registry)).await?;
        }
        dispatcher.hint(&hints);
    }
}

/// Reads the names of queues, kinds and lanes anew.
pub async fn reload(store: &Store, registry: &Registry) -> Result<(), StoreError> {
    registry.reload(&mut *store.read().await?).await
}
