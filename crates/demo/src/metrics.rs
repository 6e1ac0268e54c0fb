//! The scheduler's metrics, as it serves them over HTTP.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// For one request.
const BOUND: Duration = Duration::from_secs(5);

/// More metrics than any of the programs has.
const MAX_BYTES: u64 = 8 << 20;

/// Gets a path; anything but 200 is an error.
pub(crate) async fn get(address: SocketAddr, path: &str) -> anyhow::Result<String> {
    let answer = timeout(BOUND, exchange(address, path)).await.context("wait for an answer")??;
    let (head, body) = answer.split_once("\r\n\r\n").context("read the answer")?;
    let status = head.lines().next().unwrap_or_default();
    ensure!(status.split(' ').nth(1) == Some("200"), "http://{address}{path} answers {status}");
    Ok(body.to_owned())
}

async fn exchange(address: SocketAddr, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
    // The older version never answers in chunks.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.context("send a request")?;
    let mut answer = Vec::new();
    stream.take(MAX_BYTES).read_to_end(&mut answer).await.context("read an answer")?;
    String::from_utf8(answer).context("read an answer as text")
}

/// The sum of a metric's samples, in Prometheus' text format, whatever their labels.
pub(crate) fn sum(metrics: &str, name: &str) -> f64 {
    let samples = metrics.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        // A longer name goes on with a letter.
        let value = if rest.starts_with('{') { rest.rsplit_once('}')?.1 } else { rest.strip_prefix(' ')? };
        value.split_whitespace().next()?.parse::<f64>().ok()
    });
    samples.sum()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt as _, BufReader};

    use super::*;

    #[test]
    fn samples_are_summed_whatever_their_labels() {
        let text = "# TYPE settled_total counter\nsettled_total{answer=\"fenced\"} 2\nsettled_total{answer=\"applied\"} 40 1700000000\n\
                    settled_total_other 9\nplain 7\n";
        for (name, expected) in [("settled_total", 42.0), ("plain", 7.0), ("absent", 0.0)] {
            assert!((sum(text, name) - expected).abs() < f64::EPSILON, "{name}");
        }
    }

    #[tokio::test]
    async fn a_status_other_than_200_is_an_error() -> anyhow::Result<()> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let server = tokio::spawn(async move {
            for status in ["200 OK", "503 Service Unavailable"] {
                let (mut stream, _) = listener.accept().await?;
                // All of it: closing with bytes unread would reset the connection.
                let mut request = BufReader::new(&mut stream).lines();
                while request.next_line().await?.is_some_and(|line| !line.is_empty()) {}
                stream.write_all(format!("HTTP/1.1 {status}\r\n\r\nbody").as_bytes()).await?;
            }
            anyhow::Ok(())
        });
        assert_eq!(get(address, "/readyz").await?, "body");
        assert!(get(address, "/readyz").await.is_err());
        server.await?
    }
}
