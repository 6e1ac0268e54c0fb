//! Metrics and probes of a running process, and an exporter that is down.

use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::child::Probe;

async fn get(address: &str, path: &str) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    timeout(Duration::from_secs(10), exchange).await.expect("an answer in time")
}

#[tokio::test]
async fn metrics_liveness_and_readiness_are_served() {
    let mut probe = Probe::start(&["drain", "--metrics-listen", "0"], &[]);
    let line = probe.line("serving metrics and probes").await;
    let address = line["address"].as_str().unwrap().to_owned();
    assert!(address.starts_with("127.0.0.1:"), "a port alone means loopback: {address}");
    probe.line("starting probe").await;
    let metrics = get(&address, "/metrics").await;
    for text in ["text/plain", "process_uptime_seconds", "service_name=\"probe\"", "service_instance_id=\""] {
        assert!(metrics.contains(text), "{text} in {metrics}");
    }
    assert!(get(&address, "/healthz").await.starts_with("HTTP/1.1 200"));
    assert!(get(&address, "/readyz").await.starts_with("HTTP/1.1 200"));
    assert!(get(&address, "/").await.starts_with("HTTP/1.1 404"));
    probe.signal(Signal::TERM);
    assert_eq!(probe.end().await.0.code(), Some(0));
}

#[tokio::test]
async fn a_draining_process_is_alive_but_not_ready() {
    let mut probe = Probe::start(&["slow", "--metrics-listen", "0"], &[]);
    let address = probe.line("serving metrics and probes").await["address"].as_str().unwrap().to_owned();
    probe.line("starting probe").await;
    probe.signal(Signal::TERM);
    probe.line("draining").await;
    let closed = async { while !get(&address, "/readyz").await.contains("not ready: draining") {} };
    timeout(Duration::from_secs(10), closed).await.expect("not ready in time");
    assert!(get(&address, "/healthz").await.starts_with("HTTP/1.1 200"));
    probe.signal(Signal::TERM);
    assert_eq!(probe.end().await.0.code(), Some(143));
}

#[tokio::test]
async fn a_metrics_port_in_use_is_an_error_at_start_naming_the_flag() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (status, log) = Probe::start(&["drain", "--metrics-listen", &address], &[]).end().await;
    assert_eq!(status.code(), Some(1));
    assert!(log.iter().any(|line| line.contains(&format!("listen on --metrics-listen {address}"))), "{log:#?}");
}

#[tokio::test]
async fn a_collector_that_is_down_costs_one_line_a_signal_and_no_hang() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", taken.local_addr().unwrap());
    drop(taken);
    let mut probe = Probe::start(&["drain", "--otlp-endpoint", &endpoint], &[]);
    probe.line("starting probe").await;
    probe.signal(Signal::TERM);
    let (status, log) = probe.end().await;
    assert_eq!(status.code(), Some(0));
    let complaints = log.iter().filter(|line| line.contains("cannot export telemetry")).count();
    assert_eq!(complaints, 1, "the metrics of the last flush, and no spans were made: {log:#?}");
}
