//! The low-level way in for workers: one address, one connection, one stream.

use queue_proto::v1;
use queue_proto::v1::work_service_client::WorkServiceClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Endpoint;
use tonic::{Status, Streaming};

use crate::client::Transport;
use crate::options::Bearer;
use crate::reason::unconnected;
use crate::{ConnectOptions, Error};

/// A scheduler to open work streams to. Connects nothing by itself, so that the caller decides when, and on which runtime.
#[derive(Clone)]
pub struct WorkAddress {
    url: String,
    endpoint: Endpoint,
    bearer: Bearer,
}

/// A connection that is established and has no stream yet.
#[derive(Clone)]
pub struct Connection(Transport);

impl ConnectOptions {
    /// The schedulers to open work streams to, in the order of the addresses.
    ///
    /// Errors: [`Error::Options`].
    pub fn work_addresses(&self) -> Result<Vec<WorkAddress>, Error> {
        let bearer = self.bearer()?;
        let endpoints = self.endpoints()?;
        let pairs = self.addresses.iter().zip(endpoints);
        Ok(pairs.map(|(url, endpoint)| WorkAddress { url: url.clone(), endpoint, bearer: bearer.clone() }).collect())
    }
}

impl WorkAddress {
    /// The address as it was given.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Connects, within the connect timeout. Errors: [`Error::Unavailable`].
    pub async fn connect(&self) -> Result<Connection, Error> {
        let channel =
            self.endpoint.connect().await.map_err(|error| Error::Unavailable(unconnected(&self.url, &error)))?;
        Ok(Connection(InterceptedService::new(channel, self.bearer.clone())))
    }
}

impl Connection {
    /// Opens the work stream. `requests` must already hold the Hello: the scheduler may wait for it before it answers.
    ///
    /// Returns when the scheduler has accepted the stream; the caller bounds the wait. Answers beyond
    /// `max_message_bytes` end the stream.
    pub async fn work_stream(
        self,
        requests: mpsc::Receiver<v1::WorkRequest>,
        max_message_bytes: usize,
    ) -> Result<Streaming<v1::WorkResponse>, Status> {
        let mut service = WorkServiceClient::new(self.0).max_decoding_message_size(max_message_bytes);
        Ok(service.work(ReceiverStream::new(requests)).await?.into_inner())
    }
}
