//! The whole process: what it is made of, and in which order it starts and stops.

use std::sync::Arc;

use anyhow::Context;
use lifecycle::{Shutdown, Tasks};
use queue_core::MAX_BATCH_BYTES;
use queue_proto::v1::maintenance_service_server::MaintenanceServiceServer;
use queue_proto::v1::queue_service_server::QueueServiceServer;
use queue_proto::v1::work_service_server::WorkServiceServer;
use queue_store::{Registry, SchedulerId, Store, StoreError, check_schema, register_scheduler, retire_scheduler};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Server;

use crate::maintenance_service::Maintenance;
use crate::queue_service::Queues;
use crate::stand_in::Reaping;
use crate::timing::{PING_INTERVAL, SILENCE, Timing};
use crate::work_service::{Parts, Work};
use crate::{
    MigrateArgs, ServeArgs, batch, claimer, dispatcher, enqueue_writer, hints, metrics, promoter, pulse, renew_writer,
    settle_writer, stand_in, take_back,
};

/// Room in a message beside payloads.
const MESSAGE_MARGIN: usize = 4 << 20;

/// Brings the schema up to date.
pub async fn migrate(args: MigrateArgs) -> anyhow::Result<()> {
    let url = args.database.url()?;
    queue_store::migrate(&url, args.app_role.as_deref()).await.context("migrate the database")?;
    tracing::info!("the schema is up to date");
    Ok(())
}

/// Serves until told to stop.
pub async fn serve(args: ServeArgs, shutdown: Shutdown) -> anyhow::Result<()> {
    let timing = args.timing()?;
    args.listen.validate()?;
    let store = Store::new(&args.store()?).context("read the database's URL")?;
    let name = name(&args);
    let Some(scheduler) = start(&store, &name, timing, &shutdown).await? else { return Ok(()) };
    let served = run(&args, timing, &store, &name, scheduler, &shutdown).await;
    let retired = async { retire_scheduler(&mut *store.vital().await?, scheduler).await };
    if let Err(error) = retired.await {
        batch::complain("the farewell", &error);
    }
    store.close().await;
    served
}

fn name(args: &ServeArgs) -> String {
    args.name.as_ref().map_or_else(lifecycle::process_name, |name| name.as_str().to_owned())
}

/// Waits for the database, checks the schema, registers. `None`: told to stop meanwhile.
async fn start(store: &Store, name: &str, timing: Timing, shutdown: &Shutdown) -> anyhow::Result<Option<SchedulerId>> {
    let mut patience = batch::Patience::default();
    loop {
        let registered = async {
            let mut conn = store.vital().await?;
            check_schema(&mut conn).await?;
            register_scheduler(&mut conn, name, timing.gap).await
        };
        match registered.await {
            Ok(scheduler) => return Ok(Some(scheduler)),
            Err(error) if error.is_unavailable() => batch::complain("reaching the database", &error),
            Err(error @ StoreError::Schema(_)) => return Err(error.into()),
            Err(error) => return Err(error).context("register this scheduler"),
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
    name: &str,
    scheduler: SchedulerId,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let stop = shutdown.soft().clone();
    let registry = Arc::new(Registry::default());
    registry.reload(&mut *store.read().await?).await.context("read the registries")?;
    let mut tasks = Tasks::new(shutdown.clone());
    let dispatcher = dispatcher::Handle::new(registry.clone(), timing.insert_lag);
    let hints = hints::Handle::default();
    let promoter = promoter::Handle::default();

    let (writer, enqueues) = enqueue_writer::EnqueueWriter::new(
        store.clone(),
        registry.clone(),
        dispatcher.clone(),
        hints.clone(),
        promoter.clone(),
    );
    let (take_back, taking_back) = take_back::Handle::new(store.clone(), dispatcher.clone());
    let (settler, settling) =
        settle_writer::Handle::new(store.clone(), dispatcher.clone(), promoter.clone(), writer.clone());
    let (renewer, renewing) = renew_writer::Handle::new(store.clone(), timing, take_back.clone());
    let reaping = Reaping { store: store.clone(), dispatcher: dispatcher.clone(), hints: hints.clone(), timing };
    tasks.spawn("enqueue writer", enqueues);
    tasks.spawn("take-back writer", taking_back);
    tasks.spawn("settle writer", settling);
    tasks.spawn("renew writer", renewing);
    tasks.spawn("claimer", claimer::run(store.clone(), dispatcher.clone(), take_back.clone(), stop.clone()));
    tasks.spawn("promoter", promoter::run(store.clone(), dispatcher.clone(), hints.clone(), promoter, stop.clone()));
    tasks.spawn("lookout", hints::look(store.clone(), registry.clone(), dispatcher.clone(), stop.clone()));
    if !args.no_hints {
        tasks.spawn("hint listener", hints::receive(store.clone(), registry.clone(), dispatcher.clone(), stop.clone()));
    }
    tasks.spawn("hint sender", hints.clone().send(store.clone(), stop.clone()));
    tasks.spawn("stand-in reaper", stand_in::run(reaping.clone(), name.to_owned(), stop.clone()));
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
    };
    let streams = TaskTracker::new();
    let work = Work { parts: Arc::new(parts), streams: streams.clone(), drain: stop.clone() };
    let queues = Queues { writer, store: store.clone(), max_payload_bytes: args.max_payload_bytes };
    let maintenance = Maintenance { reaping, keep_jobs: args.keep_jobs, keep_keys: args.keep_keys };

    let listener =
        TcpListener::bind(args.listen.listen).await.with_context(|| format!("listen on {}", args.listen.listen))?;
    tracing::info!(address = %listener.local_addr()?, name, "scheduler serves");
    let auth = args.listen.auth()?;
    let mut server = Server::builder()
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(SILENCE))
        .http2_adaptive_window(Some(true))
        .tcp_nodelay(true);
    if let Some(tls) = args.listen.server_tls()? {
        server = server.tls_config(tls).context("set TLS up")?;
    }
    let max_inbound = MAX_BATCH_BYTES.max(3 * args.max_payload_bytes) + MESSAGE_MARGIN;
    let describe = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(queue_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // The released grpcurl knows only the older of the two.
    let reflection = describe().build_v1().context("describe the services")?;
    let older_reflection = describe().build_v1alpha().context("describe the services")?;
    let guard = tonic::service::InterceptorLayer::new(auth);
    let closed = CancellationToken::new();
    let serving = server
        .layer(guard)
        .add_service(health_service)
        .add_service(reflection)
        .add_service(older_reflection)
        .add_service(QueueServiceServer::new(queues).max_decoding_message_size(max_inbound))
        .add_service(
            WorkServiceServer::new(work).max_decoding_message_size(max_inbound).max_encoding_message_size(usize::MAX),
        )
        .add_service(MaintenanceServiceServer::new(maintenance))
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), closed.clone().cancelled_owned());
    let drain_timeout = args.drain_timeout;
    let drain_stop = stop.clone();
    tasks.spawn("server", async move {
        let drain = async {
            drain_stop.cancelled().await;
            telemetry::readiness().not_ready("the scheduler is stopping");
            pulse::announce(&health, false).await;
            // Streams were told to move; what they had to say is written meanwhile.
            streams.close();
            if timeout(drain_timeout, streams.wait()).await.is_err() {
                tracing::warn!(streams = streams.len(), "not all workers have moved in time");
            }
            closed.cancel();
        };
        let (served, ()) = tokio::join!(timeout_after(serving, closed.clone(), drain_timeout), drain);
        served.context("serve")
    });
    tasks.join().await
}

/// Serves until closed, and then no longer than so: a connection that never ends must not keep the process.
async fn timeout_after(
    serving: impl Future<Output = Result<(), tonic::transport::Error>>,
    closed: CancellationToken,
    bound: std::time::Duration,
) -> Result<(), tonic::transport::Error> {
    let bound = async {
        closed.cancelled().await;
        tokio::time::sleep(bound).await;
    };
    tokio::select! {
        served = serving => served,
        () = bound => Ok(()),
    }
}
