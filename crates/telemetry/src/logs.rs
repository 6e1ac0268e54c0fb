//! The subscriber.

use std::io::IsTerminal;

use anyhow::Context;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::{LogFormat, TelemetryArgs};

/// The SDK's own messages; a failing export is told by the exporter itself, once a minute.
const QUIET: &str = "opentelemetry=error";

/// Libraries below the exporter: exporting their spans would export the export.
const NOT_TRACED: [&str; 5] = ["h2", "hyper", "tonic", "tower", "opentelemetry"];

/// Installs the process's subscriber; fails if there is one.
pub(crate) fn install(
    service: &'static str,
    args: &TelemetryArgs,
    traces: Option<&SdkTracerProvider>,
) -> anyhow::Result<()> {
    let directives = args.directives();
    let filter = EnvFilter::builder()
        .parse(format!("{QUIET},{directives}"))
        .with_context(|| format!("parse --log-filter `{directives}`"))?;
    let lines = lines(args.log_format).with_filter(filter);
    let spans = traces.map(|provider| {
        let targets = Targets::new()
            .with_default(LevelFilter::INFO)
            .with_targets(NOT_TRACED.map(|target| (target, LevelFilter::OFF)));
        tracing_opentelemetry::layer().with_tracer(provider.tracer(service)).with_threads(false).with_filter(targets)
    });
    tracing_subscriber::registry().with(lines).with(spans).try_init().context("install the log subscriber")
}

/// Writes one line per event to standard error. A failing write is dropped: it must not take the process with it.
fn lines(format: LogFormat) -> Box<dyn Layer<Registry> + Send + Sync> {
    let terminal = std::io::stderr().is_terminal();
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    match format {
        LogFormat::Json => boxed(layer.json().flatten_event(true).with_current_span(false)),
        LogFormat::Auto if !terminal => boxed(layer.json().flatten_event(true).with_current_span(false)),
        LogFormat::Auto | LogFormat::Human => boxed(layer.with_ansi(terminal)),
    }
}

fn boxed<S: Subscriber + for<'a> LookupSpan<'a>>(
    layer: impl Layer<S> + Send + Sync,
) -> Box<dyn Layer<S> + Send + Sync> {
    Box::new(layer)
}
