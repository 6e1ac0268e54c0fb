//! What every client finds: health and a description of the services.

use queue_proto::v1::GetQueueStatsRequest;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::setup::{PATIENCE, Scheduler, channel, with_scheduler};

const SERVICES: [&str; 3] =
    ["fencepost.v1.MaintenanceService", "fencepost.v1.QueueService", "fencepost.v1.WorkService"];

/// What the health service says of a service.
pub async fn health(scheduler: &Scheduler, service: &str) -> Result<ServingStatus, Code> {
    let request = HealthCheckRequest { service: service.to_owned() };
    let answer = HealthClient::new(channel(scheduler.address)).check(request).await;
    answer.map(|answer| answer.into_inner().status()).map_err(|status| status.code())
}

#[tokio::test]
async fn the_health_service_knows_every_service() {
    with_scheduler(async |_, scheduler| {
        for service in SERVICES.into_iter().chain([""]) {
            let serves = async || health(scheduler, service).await == Ok(ServingStatus::Serving);
            testbed::eventually(PATIENCE, &format!("{service:?} serves"), serves).await;
        }
        assert_eq!(health(scheduler, "fencepost.v1.Other").await, Err(Code::NotFound));
    })
    .await;
}

#[tokio::test]
async fn server_reflection_lists_and_describes_the_services() {
    with_scheduler(async |_, scheduler| {
        let mut client = ServerReflectionClient::new(channel(scheduler.address));
        let ask = |message| ServerReflectionRequest { host: String::new(), message_request: Some(message) };
        let asked = [
            ask(MessageRequest::ListServices(String::new())),
            ask(MessageRequest::FileContainingSymbol("fencepost.v1.WorkService".to_owned())),
        ];
        let mut answers = client.server_reflection_info(tokio_stream::iter(asked)).await.expect("answers").into_inner();
        let mut next = async || answers.next().await.expect("an answer").expect("no error").message_response;
        let Some(MessageResponse::ListServicesResponse(listed)) = next().await else { panic!("a list") };
        let names: Vec<String> = listed.service.into_iter().map(|service| service.name).collect();
        for service in SERVICES.into_iter().chain(["grpc.health.v1.Health"]) {
            assert!(names.iter().any(|name| name == service), "{service} in {names:?}");
        }
        let Some(MessageResponse::FileDescriptorResponse(files)) = next().await else { panic!("a description") };
        let described = files.file_descriptor_proto.concat();
        assert!(described.windows(8).any(|window| window == b"LeaseAck"), "with its messages");
    })
    .await;
}

#[tokio::test]
async fn an_unknown_method_is_unimplemented() {
    with_scheduler(async |_, scheduler| {
        let refused = crate::wire::call(scheduler.address, "/fencepost.v1.QueueService/Nothing", b"").await;
        assert_eq!(refused.expect_err("refused").code(), Code::Unimplemented);
        scheduler.queue().get_queue_stats(GetQueueStatsRequest::default()).await.expect("the connection lives");
    })
    .await;
}
