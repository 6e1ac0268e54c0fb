//! A worker: handlers, their slots, and the link that feeds them.

use std::sync::Arc;
use std::time::Duration;

use client::ConnectOptions;
use queue_core::{Invalid, JobId, Token};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::clock::LeaseDeadline;
use crate::handler::Handlers;
use crate::link::Link;
use crate::metrics::Metrics;
use crate::runner::Runner;
use crate::settings::Settings;
use crate::{Pool, WorkerBuilder};

/// How long handlers that were told to stop may still use the runtime when the link is over.
const HANDLERS_END: Duration = Duration::from_millis(500);

/// Why a worker ended, or did not begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting is not acceptable.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The connection options are not usable.
    #[error(transparent)]
    Connect(#[from] client::Error),
    /// The first scheduler that answered refuses this worker, and would for ever.
    #[error("the scheduler {scheduler} refuses this worker: {reason}")]
    Refused {
        /// Its address.
        scheduler: String,
        /// What it says.
        reason: String,
    },
    /// The operating system gave no thread or runtime for the link.
    #[error("start the link to the scheduler")]
    Start(#[source] std::io::Error),
    /// The link ended in a panic.
    #[error("the link to the scheduler broke down")]
    LinkDied,
}

/// How a worker ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Leases that were still held: their results were not acknowledged in time.
    ///
    /// Where neither result nor farewell arrived, the lease is lost: the job runs again, or is dead if it has lost as many
    /// as it may.
    pub unacknowledged: Vec<(JobId, Token)>,
    /// Handlers that had not returned.
    pub handlers_left: usize,
}

/// When to stop.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    /// No new jobs; running ones get the grace.
    pub soft: CancellationToken,
    /// At once.
    pub hard: CancellationToken,
}

impl From<CancellationToken> for Stop {
    /// A drain, without a way to stop at once.
    fn from(soft: CancellationToken) -> Self {
        Self { soft, hard: CancellationToken::new() }
    }
}

impl From<lifecycle::Shutdown> for Stop {
    fn from(shutdown: lifecycle::Shutdown) -> Self {
        Self { soft: shutdown.soft().clone(), hard: shutdown.hard().clone() }
    }
}

/// Runs jobs of the kinds it has handlers for.
pub struct Worker {
    settings: Settings,
    handlers: Handlers,
}

impl Worker {
    /// Sets a worker up.
    pub fn builder() -> WorkerBuilder {
        WorkerBuilder::default()
    }

    pub(crate) fn new(settings: Settings, handlers: Handlers) -> Self {
        Self { settings, handlers }
    }

    /// Where it will connect to.
    pub fn connect_options(&self) -> &ConnectOptions {
        &self.settings.connect
    }

    /// Works until it is told to stop, then drains.
    ///
    /// Handlers run on the current runtime; the link to the schedulers runs on a thread of its own, so that handlers
    /// that block every thread of this runtime do not cost the leases. Returns within the drain grace, the cancel grace and
    /// a few seconds after the soft token fired, and within a second after the hard one did. Dropping the future is like
    /// the hard token.
    ///
    /// Errors: [`Error::Refused`] if the first scheduler that answers will never have this worker, [`Error::Start`],
    /// [`Error::LinkDied`].
    pub async fn run(self, stop: impl Into<Stop>) -> Result<Report, Error> {
        let Stop { soft, hard } = stop.into();
        let hard = hard.child_token();
        let _stop_if_dropped = hard.clone().drop_guard();
        let slots = self.settings.concurrency as usize;
        let pool = Pool::new(slots, slots);
        let (ended, ends) = mpsc::channel(slots);
        let metrics = Arc::new(Metrics::new(self.settings.concurrency));
        let runner = Runner { pool: pool.clone(), deadline: Arc::new(LeaseDeadline::default()), ended, metrics };
        let link = Link::new(self.settings, self.handlers, runner, ends)?;
        let report = on_own_thread(link, soft, hard).await?;
        pool.close();
        // The slots' last words, such as the end of a child process. A handler that never returns must not hold this up.
        let _ = tokio::time::timeout(HANDLERS_END, pool.shutdown(HANDLERS_END)).await;
        Ok(report)
    }
}

/// Runs the link where nothing can starve it.
async fn on_own_thread(link: Link, soft: CancellationToken, hard: CancellationToken) -> Result<Report, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Start)?;
    let (done, result) = oneshot::channel();
    let run = move || {
        let result = runtime.block_on(link.run(soft, hard));
        // Nobody waits any more if the worker's future was dropped.
        let _ = done.send(result);
    };
    std::thread::Builder::new().name("fencepost-link".to_owned()).spawn(run).map_err(Error::Start)?;
    result.await.map_err(|_| Error::LinkDied)?
}
