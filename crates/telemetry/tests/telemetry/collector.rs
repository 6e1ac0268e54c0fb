//! A collector that hands on what it receives.

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Spans of one export, and the names of their resource's attributes.
pub struct Spans {
    pub spans: Vec<Span>,
    pub resource: Vec<String>,
}

pub struct Collector {
    port: u16,
    pub spans: Receiver<Spans>,
    /// Names of one export.
    pub metrics: Receiver<Vec<String>>,
}

impl Collector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (spans_in, spans) = channel(16);
        let (metrics_in, metrics) = channel(16);
        let server = Server::builder()
            .add_service(TraceServiceServer::new(Traces(spans_in)))
            .add_service(MetricsServiceServer::new(Metrics(metrics_in)));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { port, spans, metrics }
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

struct Traces(Sender<Spans>);
struct Metrics(Sender<Vec<String>>);

#[tonic::async_trait]
impl TraceService for Traces {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for group in request.into_inner().resource_spans {
            let resource = group.resource.unwrap_or_default().attributes.into_iter().map(|pair| pair.key).collect();
            let spans = group.scope_spans.into_iter().flat_map(|scope| scope.spans).collect();
            let _ = self.0.send(Spans { spans, resource }).await;
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Metrics {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        for group in request.into_inner().resource_metrics {
            let metrics = group.scope_metrics.into_iter().flat_map(|scope| scope.metrics);
            let _ = self.0.send(metrics.map(|metric| metric.name).collect()).await;
        }
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}
