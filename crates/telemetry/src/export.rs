//! Export over OTLP, which never blocks the work and complains once a minute.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig, WithTonicConfig, tonic_types::transport};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData};
use tokio::time::Instant;

use crate::LogLimit;

/// One request to the collector, on a thread of the exporter's own.
const EXPORT_BOUND: Duration = Duration::from_secs(3);

/// How often a collector that is down is mentioned.
const COMPLAINT_INTERVAL: Duration = Duration::from_mins(1);

/// Wraps an exporter: a failure is logged once a minute and is then over, so that the SDK does not log it again.
pub(crate) struct Quiet<E> {
    inner: E,
    limit: Arc<LogLimit>,
    signal: &'static str,
}

impl<E> Debug for Quiet<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quiet").field("signal", &self.signal).finish_non_exhaustive()
    }
}

impl<E> Quiet<E> {
    fn complain(&self, result: &OTelSdkResult) {
        let Err(error) = result else { return };
        if matches!(error, OTelSdkError::AlreadyShutdown) {
            return;
        }
        if let Some(suppressed) = self.limit.allow(self.signal, Instant::now()) {
            tracing::warn!(signal = self.signal, %error, suppressed, "cannot export telemetry; what was collected is dropped");
        }
    }
}

impl<E: opentelemetry_sdk::trace::SpanExporter> opentelemetry_sdk::trace::SpanExporter for Quiet<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.complain(&self.inner.export(batch).await);
        Ok(())
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

impl<E: PushMetricExporter> PushMetricExporter for Quiet<E> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        self.complain(&self.inner.export(metrics).await);
        Ok(())
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.inner.temporality()
    }
}

/// The process's traces, sent to the endpoint in batches. Within a runtime.
pub(crate) fn tracer_provider(endpoint: &str, resource: &Resource) -> anyhow::Result<SdkTracerProvider> {
    let mut builder = SpanExporter::builder().with_tonic().with_endpoint(endpoint).with_timeout(EXPORT_BOUND);
    if let Some(tls) = tls(endpoint) {
        builder = builder.with_tls_config(tls);
    }
    let exporter = builder.build().context("set up the export of traces to --otlp-endpoint")?;
    Ok(SdkTracerProvider::builder()
        .with_resource(resource.clone())
        .with_batch_exporter(quiet(exporter, "traces"))
        .build())
}

/// The process's metrics, sent to the endpoint each minute. Within a runtime.
pub(crate) fn metric_exporter(endpoint: &str) -> anyhow::Result<Quiet<MetricExporter>> {
    let mut builder = MetricExporter::builder().with_tonic().with_endpoint(endpoint).with_timeout(EXPORT_BOUND);
    if let Some(tls) = tls(endpoint) {
        builder = builder.with_tls_config(tls);
    }
    Ok(quiet(builder.build().context("set up the export of metrics to --otlp-endpoint")?, "metrics"))
}

fn quiet<E>(inner: E, signal: &'static str) -> Quiet<E> {
    Quiet { inner, limit: Arc::new(LogLimit::every(COMPLAINT_INTERVAL)), signal }
}

/// The system's roots for an endpoint with TLS.
fn tls(endpoint: &str) -> Option<transport::ClientTlsConfig> {
    let is_secure = endpoint.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"));
    is_secure.then(|| transport::ClientTlsConfig::new().with_enabled_roots())
}
