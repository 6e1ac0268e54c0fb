//! Export to a collector over a real socket.

mod collector;

use std::time::Duration;

use telemetry::{TelemetryArgs, current_traceparent, set_parent};
use tokio::time::timeout;

use collector::Collector;

const PATIENCE: Duration = Duration::from_secs(20);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

// One test, because telemetry starts once per process.
#[tokio::test(flavor = "multi_thread")]
async fn traces_continue_the_callers_and_arrive_with_metrics_and_resource() {
    let mut collector = Collector::start().await;
    assert_eq!(current_traceparent(), None, "nothing is computed before there is an exporter");

    let endpoint = Some(collector.endpoint());
    let guard =
        telemetry::init("test", &TelemetryArgs { otlp_endpoint: endpoint, ..TelemetryArgs::default() }).unwrap();
    telemetry::meter().u64_counter("fencepost.test.counts").build().add(7, &[]);

    let span = tracing::info_span!("job", job.id = 42);
    set_parent(&span, PARENT);
    let child = span.in_scope(current_traceparent).expect("a trace context within a span");
    assert!(child.starts_with(&format!("00-{TRACE}-")) && child.ends_with("-01"), "{child}");
    assert!(!child.contains("00f067aa0ba902b7"), "the span is a child of the parent and not the parent");
    drop(span);

    let malformed = tracing::info_span!("malformed");
    set_parent(&malformed, "not a traceparent");
    let own = malformed.in_scope(current_traceparent).expect("a trace of its own");
    assert!(!own.contains(TRACE), "{own}");
    drop(malformed);

    tokio::task::spawn_blocking(move || drop(guard)).await.unwrap();
    let spans = timeout(PATIENCE, collector.spans.recv()).await.expect("spans in time").unwrap();
    let job = spans.spans.iter().find(|span| span.name == "job").expect("the span");
    assert_eq!(hex(&job.trace_id), TRACE);
    assert_eq!(hex(&job.parent_span_id), "00f067aa0ba902b7");
    for key in ["service.name", "service.version", "service.instance.id"] {
        assert!(spans.resource.iter().any(|name| name == key), "{key} in {:?}", spans.resource);
    }
    let metrics = timeout(PATIENCE, collector.metrics.recv()).await.expect("metrics in time").unwrap();
    for name in ["fencepost.test.counts", "process.uptime"] {
        assert!(metrics.iter().any(|metric| metric == name), "{name} in {metrics:?}");
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}
