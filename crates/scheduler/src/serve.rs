//! The whole process: what it is made of, and in which order it starts and stops.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use lifecycle::{Shutdown, Tasks};
use queue_store::{Registry, SchedulerId, Store, StoreError, check_schema, register_scheduler, retire_scheduler};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic_health::server::HealthReporter;

use crate::cause::cause;
use crate::lookout::Lookout;
use crate::maintenance_service::Maintenance;
use crate::queue_service::Queues;
use crate::ready::Ready;
use crate::reaping::Reaping;
use crate::timing::Timing;
use crate::work_service::{Parts, Work};
use crate::{
    MigrateArgs, ServeArgs, batch, claimer, dispatcher, enqueue_writer, hints, metrics, promoter, pulse, renew_writer,
    server, settle_writer, stand_in, take_back,
};

/// Sessions that are opened side by side, on the connections that renewals use too.
const DOORWAY: usize = 2;
/// How long after the drain what is still to be written may take. Workers keep their results and send them again.
const WRITE_BOUND: Duration = Duration::from_secs(5);
/// How long the farewell to the database may take, each of its two parts.
const FAREWELL_BOUND: Duration = Duration::from_secs(2);

/// Brings the schema up to date.
pub async fn migrate(args: MigrateArgs) -> anyhow::Result<()> {
    let url = args.database.url()?;
    args.database.warn();
    let migrated = queue_store::migrate(&url, args.app_role.as_deref()).await;
    migrated.map_err(|error| anyhow!(cause(&error))).context("migrate the database")?;
    tracing::info!("the schema is up to date");
    Ok(())
}

/// Serves until told to stop.
pub async fn serve(args: ServeArgs, shutdown: Shutdown) -> anyhow::Result<()> {
    let timing = args.check()?;
    args.database.warn();
    let store =
        Store::new(&args.store()?).map_err(|error| anyhow!(cause(&error))).context("read the database's URL")?;
    let name = name(&args);
    let registry = Arc::new(Registry::default());
    let Some(scheduler) = start(&store, &registry, &name, timing, &shutdown).await? else { return Ok(()) };
    let served = run(&args, timing, &store, registry, &name, scheduler, &shutdown).await;
    let retired = async { retire_scheduler(&mut *store.vital().await?, scheduler).await };
    if let Ok(Err(error)) = timeout(FAREWELL_BOUND, store.within(retired)).await {
        batch::complain("the farewell", &error);
    }
    let _ = timeout(FAREWELL_BOUND, store.close()).await;
    served
}

fn name(args: &ServeArgs) -> String {
    args.name.as_ref().map_or_else(lifecycle::process_name, |name| name.as_str().to_owned())
}

/// Waits for the database, checks the schema, reads the registries, registers. `None`: told to stop meanwhile.
async fn start(
    store: &Store,
    registry: &Registry,
    name: &str,
    timing: Timing,
    shutdown: &Shutdown,
) -> anyhow::Result<Option<SchedulerId>> {
    let mut patience = batch::Patience::default();
    loop {
        let registered = async {
            let mut conn = store.vital().await?;
            check_schema(&mut conn).await?;
            hints::reload(store, registry).await?;
            register_scheduler(&mut conn, name, timing.gap).await
        };
        match store.within(registered).await {
            Ok(scheduler) => return Ok(Some(scheduler)),
            Err(error) if error.is_unavailable() => batch::complain("reaching the database", &error),
            Err(error @ StoreError::Schema(_)) => return Err(error.into()),
            Err(error) => return Err(anyhow!(cause(&error)).context("register this scheduler")),
        }
        tokio::select! {
            () = patience.wait() => {}
            () = shutdown.soft().cancelled() => return Ok(None),
        }
    }
}

async fn run(
    args: &ServeArgs,
    timing: Timing,
    store: &Store,
    registry: Arc<Registry>,
    name: &str,
    scheduler: SchedulerId,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let stop = shutdown.soft().clone();
    let mut tasks = Tasks::new(shutdown.clone());
    let dispatcher = dispatcher::Handle::new(registry.clone(), timing.insert_lag);
    let hints = hints::Handle::default();
    let ready = Ready { dispatcher: dispatcher.clone(), hints: hints.clone() };
    let promoter = promoter::Handle::default();

    let (take_back, taking_back) = take_back::Handle::new(store.clone(), registry.clone(), ready.clone());
    let (writer, enqueues) = enqueue_writer::EnqueueWriter::new(
        store.clone(),
        registry.clone(),
        ready.clone(),
        promoter.clone(),
        take_back.clone(),
    );
    let (settler, settling) =
        settle_writer::Handle::new(store.clone(), registry.clone(), ready.clone(), promoter.clone(), writer.clone());
    let (renewer, renewing) = renew_writer::Handle::new(store.clone(), timing, dispatcher.clone(), take_back.clone());
    let reaping = Reaping { store: store.clone(), registry: registry.clone(), ready: ready.clone(), timing };
    tasks.spawn("enqueue writer", enqueues);
    tasks.spawn("take-back writer", taking_back);
    tasks.spawn("settle writer", settling);
    tasks.spawn("renew writer", renewing);
    let claiming =
        claimer::run(store.clone(), dispatcher.clone(), hints.clone(), take_back.clone(), timing, stop.clone());
    tasks.spawn("claimer", claiming);
    tasks.spawn("promoter", promoter::run(store.clone(), ready.clone(), promoter.clone(), stop.clone()));
    if !args.no_hints {
        tasks.spawn("hint listener", hints::receive(store.clone(), registry.clone(), dispatcher.clone(), stop.clone()));
    }
    tasks.spawn("hint sender", hints.clone().send(store.clone(), stop.clone()));
    let (stand_in, standing_in) = stand_in::Handle::new(reaping.clone(), name.to_owned(), stop.clone());
    tasks.spawn("stand-in reaper", standing_in);
    let lookout =
        Lookout { store: store.clone(), registry: registry.clone(), ready: ready.clone(), promoter, stand_in };
    tasks.spawn("lookout", lookout.run(stop.clone()));
    tasks.spawn("metrics", metrics::run(store.clone(), dispatcher.clone(), stop.clone()));
    let (health, health_service) = tonic_health::server::health_reporter();
    tasks.spawn("pulse", pulse::run(store.clone(), scheduler, timing, hints, health.clone(), stop.clone()));

    let parts = Parts {
        store: store.clone(),
        registry,
        scheduler,
        timing,
        max_payload_bytes: args.max_payload_bytes,
        dispatcher,
        renewer,
        settler,
        take_back,
        ready,
        doorway: Semaphore::new(DOORWAY),
    };
    let streams = TaskTracker::new();
    let closed = CancellationToken::new();
    let work = Work { parts: Arc::new(parts), streams: streams.clone(), drain: stop.clone(), closed: closed.clone() };
    let queues = Queues { writer, store: store.clone(), max_payload_bytes: args.max_payload_bytes };
    let maintenance = Maintenance { reaping, keep_jobs: args.keep_jobs, keep_keys: args.keep_keys };

    let services = server::Services { queues, work, maintenance, health: health_service };
    let listener = server::listen(args.listen.listen).await?;
    tracing::info!(address = %listener.local_addr()?, name, "scheduler serves");
    let serving = server::serve(services, listener, args, closed.clone())?;
    let drain = drain(stop.clone(), streams, health, args.drain_timeout, closed);
    tasks.spawn("server", async move {
        let (served, ()) = tokio::join!(serving, drain);
        served
    });
    let bound = async {
        stop.cancelled().await;
        sleep(args.drain_timeout + WRITE_BOUND).await;
    };
    tokio::select! {
        ended = tasks.join() => ended,
        () = bound => {
            tracing::warn!("stopping with results unwritten: their workers keep them and send them again");
            Ok(())
        }
    }
}

/// Waits for the end: workers were told to move by their streams; what they had to say is written meanwhile.
async fn drain(
    stop: CancellationToken,
    streams: TaskTracker,
    health: HealthReporter,
    bound: Duration,
    closed: CancellationToken,
) {
    stop.cancelled().await;
    telemetry::readiness().not_ready("the scheduler is stopping");
    pulse::announce(&health, false).await;
    streams.close();
    if timeout(bound, streams.wait()).await.is_err() {
        tracing::warn!(streams = streams.len(), "not all workers have moved in time");
    }
    closed.cancel();
}
