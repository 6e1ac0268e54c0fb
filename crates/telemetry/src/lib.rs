//! Logs, traces and metrics: one way for every binary.
//!
//! [`init`] installs the subscriber, the exporters and the small HTTP server for Prometheus and probes. What is not
//! configured is not installed: without an endpoint there is no tracing layer and every instrument is a no-op.
//!
//! Logs go to standard error. Payloads, secrets and credentials never appear in them.

mod args;
mod export;
mod guard;
mod http;
mod log_limit;
mod logs;
mod metrics;
mod process;
mod readiness;
mod trace_context;

pub use args::{LogFormat, TelemetryArgs};
pub use guard::{FLUSH_BOUND, Guard, init};
pub use log_limit::LogLimit;
pub use metrics::{SECONDS, commit_histogram, meter, seconds_histogram};
pub use readiness::{Readiness, readiness};
pub use trace_context::{current_traceparent, set_parent};
