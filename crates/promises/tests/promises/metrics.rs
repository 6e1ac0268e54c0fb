//! What a process shows to Prometheus.

use std::net::SocketAddr;
use std::time::Duration;

use testbed::eventually;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Figures by queue are read every 5 s.
const FRESH: Duration = Duration::from_secs(20);

/// The text that is scraped.
pub async fn scrape(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.expect("the metrics are served");
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("asks");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("answers");
    text
}

/// The sum of the samples of that name whose labels contain all of these.
pub async fn sample(address: SocketAddr, name: &str, labels: &[&str]) -> Option<f64> {
    let text = scrape(address).await;
    let lines = text.lines().filter(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label))
    });
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.fold(None, |sum, value| Some(sum.unwrap_or_default() + value))
}

/// Waits until a sample has that value.
pub async fn shows(address: SocketAddr, name: &str, labels: &[&str], wanted: f64) {
    let mut last = None;
    let what = format!("{name}{labels:?} is {wanted}");
    eventually(FRESH, &what, async || {
        last = sample(address, name, labels).await;
        last.is_some_and(|value| (value - wanted).abs() < f64::EPSILON)
    })
    .await;
}
