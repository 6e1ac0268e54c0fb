//! The measurements of passes.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram};

use crate::Report;

/// Instruments, made once per process after telemetry has started.
pub(crate) struct Metrics {
    passes: Counter<u64>,
    failures: Counter<u64>,
    duration: Histogram<f64>,
    lag: Histogram<f64>,
    last_lag: Gauge<f64>,
    expired: Counter<u64>,
    reaped: Counter<u64>,
    retried: Counter<u64>,
    dead: Counter<u64>,
    standby: Gauge<u64>,
    violations: Gauge<u64>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let meter = telemetry::meter();
        let counter = |name, text| meter.u64_counter(name).with_description(text).build();
        let gauge = |name, text| meter.u64_gauge(name).with_description(text).build();
        Self {
            passes: counter("fencepost.reaper.passes", "Passes, by outcome: acted, standby or failed"),
            failures: counter("fencepost.reaper.step.failures", "Steps of passes that failed, by step"),
            duration: telemetry::seconds_histogram("fencepost.reaper.pass.duration", "How long passes took"),
            lag: telemetry::seconds_histogram("fencepost.reaper.lag", "How late dead sessions were marked"),
            last_lag: meter
                .f64_gauge("fencepost.reaper.last_lag")
                .with_unit("s")
                .with_description("How late the last pass marked dead sessions; 0 if there were none")
                .build(),
            expired: counter("fencepost.reaper.sessions.expired", "Sessions marked dead"),
            reaped: counter("fencepost.reaper.leases.reaped", "Leases taken back"),
            retried: counter(
                "fencepost.reaper.jobs.retried",
                "Jobs whose lease was taken back and that are ready again",
            ),
            dead: counter("fencepost.reaper.jobs.dead", "Jobs whose lease was taken back and that are dead"),
            standby: gauge("fencepost.reaper.standby", "1 while another reaper acts"),
            violations: gauge("fencepost.reaper.violations", "Violated invariants that the last audit found"),
        }
    }

    pub(crate) fn record(&self, report: &Report) {
        self.passes.add(1, &[KeyValue::new("outcome", outcome(report))]);
        for failure in &report.failures {
            self.failures.add(1, &[KeyValue::new("step", failure.step.as_str())]);
        }
        self.duration.record(report.took.as_secs_f64(), &[]);
        self.record_lag(report.expired, report.lag);
        self.expired.add(report.expired, &[]);
        self.reaped.add(report.reaped, &[]);
        self.retried.add(report.retried, &[]);
        self.dead.add(report.dead, &[]);
        self.standby.record(report.standby.into(), &[]);
        if let Some(violations) = &report.violations {
            self.violations.record(violations.len() as u64, &[]);
        }
    }

    fn record_lag(&self, expired: u64, lag: Duration) {
        self.last_lag.record(lag.as_secs_f64(), &[]);
        if expired > 0 {
            self.lag.record(lag.as_secs_f64(), &[]);
        }
    }
}

fn outcome(report: &Report) -> &'static str {
    match (report.succeeded(), report.standby) {
        (false, _) => "failed",
        (true, true) => "standby",
        (true, false) => "acted",
    }
}
