//! W3C trace context, to and from the job.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Header and field name of the W3C recommendation.
const TRACEPARENT: &str = "traceparent";

/// Set once by `init` if traces are exported, so that nothing is computed otherwise.
static EXPORTING: AtomicBool = AtomicBool::new(false);

pub(crate) fn enable() {
    EXPORTING.store(true, Ordering::Relaxed);
}

/// The current span as a `traceparent`. None if no traces are exported or no span is open.
pub fn current_traceparent() -> Option<String> {
    if !EXPORTING.load(Ordering::Relaxed) {
        return None;
    }
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&Span::current().context(), &mut carrier);
    carrier.remove(TRACEPARENT)
}

/// Makes the span a child of the one that `traceparent` names. Before the span is first entered.
///
/// Malformed text is ignored, since it comes from outside: the span then starts a trace of its own.
pub fn set_parent(span: &Span, traceparent: &str) {
    if !EXPORTING.load(Ordering::Relaxed) {
        return;
    }
    let carrier = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
    let context = TraceContextPropagator::new().extract(&carrier);
    if span.set_parent(context).is_err() {
        tracing::debug!("cannot set the parent of a span that is disabled or was entered");
    }
}
