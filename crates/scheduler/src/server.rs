//! The gRPC server: which services, with which bounds, behind which protection.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use queue_core::MAX_BATCH_BYTES;
use queue_proto::v1::maintenance_service_server::MaintenanceServiceServer;
use queue_proto::v1::queue_service_server::QueueServiceServer;
use queue_proto::v1::work_service_server::WorkServiceServer;
use tokio::net::TcpListener;
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::pb::health_server::{Health, HealthServer};

use crate::ServeArgs;
use crate::doorman::{Doorman, Guest};
use crate::maintenance_service::Maintenance;
use crate::queue_service::Queues;
use crate::timing::SILENCE;
use crate::work_service::Work;

/// Room in a message beside payloads.
const MESSAGE_MARGIN: usize = 4 << 20;
/// Calls side by side on one connection; more wait in the client.
const CALLS_PER_CONNECTION: u32 = 1_000;
/// Bytes on their way in one call: what one round trip can bring.
const STREAM_WINDOW: u32 = 2 << 20;
/// Bytes on their way in one connection. Not left to be found out: the transport closes a connection on which more small
/// messages wait than fit half of this, and with the 64 KiB at which it would begin a burst of 130 calls is too many.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// A connection on which nothing came for so long is asked for a sign of life. Workers' streams have pings of their own.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How long calls under way may still take when the server closes.
const CLOSE_BOUND: Duration = Duration::from_secs(3);

/// What is served.
pub struct Services<H: Health> {
    /// For producers.
    pub queues: Queues,
    /// For workers.
    pub work: Work,
    /// For the reaper.
    pub maintenance: Maintenance,
    /// For probes, which have no token.
    pub health: HealthServer<H>,
}

/// Starts to listen.
pub async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("listen on {address}"))
}

/// Serves until `closed` fires, and then no longer than calls under way may take.
pub fn serve<H: Health>(
    services: Services<H>,
    listener: TcpListener,
    args: &ServeArgs,
    closed: CancellationToken,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + use<H>> {
    let doorman = Doorman(args.listen.auth()?);
    let describe = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(queue_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // Released versions of grpcurl know only the older of the two.
    let reflection = describe().build_v1().context("describe the services")?;
    let older_reflection = describe().build_v1alpha().context("describe the services")?;
    let max_inbound = MAX_BATCH_BYTES.max(3 * args.max_payload_bytes) + MESSAGE_MARGIN;
    let queues = QueueServiceServer::new(services.queues).max_decoding_message_size(max_inbound);
    let work = WorkServiceServer::new(services.work).max_decoding_message_size(max_inbound);
    let maintenance = MaintenanceServiceServer::new(services.maintenance);
    let mut server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(SILENCE))
        .max_concurrent_streams(Some(CALLS_PER_CONNECTION))
        .initial_stream_window_size(Some(STREAM_WINDOW))
        .initial_connection_window_size(Some(CONNECTION_WINDOW));
    let tls = args.listen.server_tls()?;
    let secured = tls.is_some();
    if let Some(tls) = tls {
        server = server.tls_config(tls).context("set TLS up")?;
    }
    // Set here: the builder's own setting applies only to sockets that it opens. Without it a grant waits 40 ms for the
    // acknowledgement of what was sent before.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let incoming = incoming.map(move |accepted| accepted.map(|io| Guest::new(io, secured)));
    let serving = server
        .add_service(services.health)
        .add_service(InterceptedService::new(reflection, doorman.clone()))
        .add_service(InterceptedService::new(older_reflection, doorman.clone()))
        .add_service(InterceptedService::new(queues, doorman.clone()))
        .add_service(InterceptedService::new(work, doorman.clone()))
        .add_service(InterceptedService::new(maintenance, doorman))
        .serve_with_incoming_shutdown(incoming, closed.clone().cancelled_owned());
    Ok(async move {
        let bound = async {
            closed.cancelled().await;
            tokio::time::sleep(CLOSE_BOUND).await;
        };
        tokio::select! {
            ended = serving => ended.context("serve"),
            () = bound => Ok(()),
        }
    })
}
