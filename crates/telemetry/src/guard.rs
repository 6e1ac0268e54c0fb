//! Start and end of telemetry.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::{TelemetryArgs, export, http, logs, metrics, readiness, trace_context};

/// The longest wait for the last export when the process ends.
pub const FLUSH_BOUND: Duration = Duration::from_secs(3);

/// Keeps telemetry running; flushes and stops it when dropped.
///
/// Drop it outside of asynchronous code while the runtime still runs: the last export needs its threads.
#[derive(Debug)]
#[must_use = "telemetry stops when the guard is dropped"]
pub struct Guard {
    traces: Option<SdkTracerProvider>,
    metrics: Option<SdkMeterProvider>,
    server: Option<(SocketAddr, JoinHandle<()>)>,
}

/// Starts logs, metrics and traces. Once per process, within a multi-threaded runtime.
///
/// Fails on a malformed filter or endpoint, or if the metrics address cannot be listened on. A collector that is down
/// is no error.
pub fn init(service: &'static str, args: &TelemetryArgs) -> anyhow::Result<Guard> {
    let resource = resource(service);
    let traces = args.endpoint()?.map(|endpoint| export::tracer_provider(endpoint, &resource)).transpose()?;
    logs::install(service, args, traces.as_ref())?;
    if traces.is_some() {
        trace_context::enable();
    }
    let mut guard = Guard { traces, metrics: None, server: None };
    guard.start_metrics(args, &resource)?;
    Ok(guard)
}

impl Guard {
    /// Where `/metrics` is served, if it is: tells the port when the flag asked for port 0.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(|(address, _)| *address)
    }

    /// Installs no provider if nobody would read it; then every instrument is a no-op.
    fn start_metrics(&mut self, args: &TelemetryArgs, resource: &Resource) -> anyhow::Result<()> {
        let mut builder = SdkMeterProvider::builder().with_resource(resource.clone());
        if let Some(address) = args.metrics_listen {
            let (with_registry, registry) = metrics::prometheus_builder(resource)?;
            builder = with_registry;
            let server = http::serve(address, registry, readiness())?;
            tracing::info!(address = %server.0, "serving metrics and probes");
            self.server = Some(server);
        }
        if let Some(endpoint) = args.endpoint()? {
            builder = builder.with_reader(PeriodicReader::builder(export::metric_exporter(endpoint)?).build());
        } else if self.server.is_none() {
            return Ok(());
        }
        self.metrics = Some(metrics::install(builder));
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let (traces, metrics) = (self.traces.take(), self.metrics.take());
        if traces.is_some() || metrics.is_some() {
            flush(traces, metrics);
        }
        if let Some((_, server)) = self.server.take() {
            server.abort();
        }
    }
}

/// On a thread, because the SDK waits for its own threads and not all of its waits are bounded.
fn flush(traces: Option<SdkTracerProvider>, metrics: Option<SdkMeterProvider>) {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        if let Some(traces) = traces {
            // The exporter has told a failure already.
            let _ = traces.shutdown_with_timeout(FLUSH_BOUND);
        }
        if let Some(metrics) = metrics {
            let _ = metrics.shutdown();
        }
        let _ = done.send(());
    });
    if wait.recv_timeout(FLUSH_BOUND).is_err() {
        tracing::warn!(bound = ?FLUSH_BOUND, "telemetry was not flushed in time");
    }
}

fn resource(service: &'static str) -> Resource {
    Resource::builder()
        .with_service_name(service)
        .with_attributes([
            KeyValue::new("service.namespace", "fencepost"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", Uuid::new_v4().to_string()),
        ])
        .build()
}
