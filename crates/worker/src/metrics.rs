//! What the worker counts. Labels are kinds, which the builder bounds, and fixed words.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, UpDownCounter};

use crate::runner::Ended;

/// The instruments of one worker.
pub(crate) struct Metrics {
    capacity: Gauge<u64>,
    running: UpDownCounter<i64>,
    unacknowledged: Gauge<u64>,
    leases_lost: Counter<u64>,
    panics: Counter<u64>,
    reconnects: Counter<u64>,
    settlements: Counter<u64>,
    duration: Histogram<f64>,
}

impl Metrics {
    /// Makes the instruments; silent unless telemetry was started before.
    pub(crate) fn new(capacity: u32) -> Self {
        let meter = telemetry::meter();
        let metrics = Self {
            capacity: meter.u64_gauge("fencepost.worker.capacity").with_description("Slots of the worker").build(),
            running: meter
                .i64_up_down_counter("fencepost.worker.running")
                .with_description("Handlers that run now")
                .build(),
            unacknowledged: meter
                .u64_gauge("fencepost.worker.unacknowledged")
                .with_description("Results that no scheduler has acknowledged yet")
                .build(),
            leases_lost: meter
                .u64_counter("fencepost.worker.leases.lost")
                .with_description("Leases lost while their handler ran")
                .build(),
            panics: meter.u64_counter("fencepost.worker.panics").with_description("Handlers that panicked").build(),
            reconnects: meter
                .u64_counter("fencepost.worker.reconnects")
                .with_description("Streams opened after the first one")
                .build(),
            settlements: meter
                .u64_counter("fencepost.worker.settlements")
                .with_description("Settlements by the verdict of the scheduler")
                .build(),
            duration: telemetry::seconds_histogram("fencepost.worker.handler.duration", "Run time of handlers by kind"),
        };
        metrics.capacity.record(capacity.into(), &[]);
        metrics
    }

    /// Counts a handler as running until the result is dropped.
    pub(crate) fn running(&self) -> impl Drop + use<> {
        Running::new(self.running.clone())
    }

    pub(crate) fn ran(&self, kind: &str, duration: Duration, ended: &Ended) {
        self.duration.record(duration.as_secs_f64(), &[KeyValue::new("job_kind", kind.to_owned())]);
        if matches!(ended, Ended::Panicked(_)) {
            self.panics.add(1, &[]);
        }
    }

    pub(crate) fn lost(&self, leases: usize) {
        self.leases_lost.add(leases as u64, &[]);
    }

    pub(crate) fn reconnected(&self) {
        self.reconnects.add(1, &[]);
    }

    pub(crate) fn settled(&self, verdict: &'static str) {
        self.settlements.add(1, &[KeyValue::new("verdict", verdict)]);
    }

    pub(crate) fn unacknowledged(&self, results: usize) {
        self.unacknowledged.record(results as u64, &[]);
    }
}

struct Running(UpDownCounter<i64>);

impl Running {
    fn new(counter: UpDownCounter<i64>) -> Self {
        counter.add(1, &[]);
        Self(counter)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.add(-1, &[]);
    }
}
