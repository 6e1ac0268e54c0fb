//! Meters and the provider behind them.

use anyhow::Context;
use opentelemetry::global;
use opentelemetry::metrics::{Histogram, Meter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{MeterProviderBuilder, SdkMeterProvider};
use prometheus::Registry;
use tokio::time::Instant;

use crate::process;

const METER: &str = "fencepost";

/// Bucket bounds for durations in seconds, from half a millisecond to ten minutes.
pub const SECONDS: [f64; 18] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0];

/// Bucket bounds for statements in seconds, ten for each power of ten where a commit usually lies: a percentile read from them
/// is right within a few per cent.
const COMMIT_SECONDS: [f64; 32] = [
    0.0005, 0.00063, 0.0008, 0.001, 0.00125, 0.0016, 0.002, 0.0025, 0.0032, 0.004, 0.005, 0.0063, 0.008, 0.01, 0.0125,
    0.016, 0.02, 0.025, 0.032, 0.04, 0.05, 0.063, 0.08, 0.1, 0.16, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// The meter of this process. Instruments made before [`crate::init`] stay silent: make them in or below `main`.
///
/// Labels must come from bounded sets: no ids, no texts from outside.
pub fn meter() -> Meter {
    global::meter(METER)
}

/// A histogram of durations in seconds, with the buckets of [`SECONDS`].
pub fn seconds_histogram(name: &'static str, description: &'static str) -> Histogram<f64> {
    histogram(name, description, &SECONDS)
}

/// A histogram of durations of commits in seconds, with narrow buckets.
pub fn commit_histogram(name: &'static str, description: &'static str) -> Histogram<f64> {
    histogram(name, description, &COMMIT_SECONDS)
}

fn histogram(name: &'static str, description: &'static str, bounds: &[f64]) -> Histogram<f64> {
    meter().f64_histogram(name).with_unit("s").with_description(description).with_boundaries(bounds.to_vec()).build()
}

/// Starts a provider that a Prometheus registry reads.
pub(crate) fn prometheus_builder(resource: &Resource) -> anyhow::Result<(MeterProviderBuilder, Registry)> {
    let registry = Registry::new();
    let exporter = opentelemetry_prometheus::exporter()
        .with_registry(registry.clone())
        .scope_info_enabled(false)
        .build()
        .context("register the metrics exporter")?;
    Ok((SdkMeterProvider::builder().with_resource(resource.clone()).with_reader(exporter), registry))
}

/// Makes the provider the process's own.
pub(crate) fn install(builder: MeterProviderBuilder) -> SdkMeterProvider {
    let provider = builder.build();
    global::set_meter_provider(provider.clone());
    process::register(&meter(), Instant::now());
    provider
}
