//! What a program says of itself over HTTP on its metrics port.

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
pub async fn get(address: SocketAddr, path: &str) -> anyhow::Result<String> {
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

/// The sum of a metric's samples, in Prometheus' text format, that have all these labels.
pub fn sum(metrics: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    let samples = metrics.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let (found, value) = match rest.strip_prefix('{') {
            Some(rest) => rest.rsplit_once('}')?,
            None => ("", rest),
        };
        // A longer name goes on with a letter.
        let whole = rest.starts_with(['{', ' ']);
        let matching = labels.iter().all(|(label, value)| found.contains(&format!("{label}=\"{value}\"")));
        (whole && matching).then(|| value.split_whitespace().next()?.parse::<f64>().ok())?
    });
    samples.sum()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt as _, BufReader};

    use super::*;

    #[test]
    fn samples_are_summed_by_name_and_label() {
        let text = "# TYPE settled_total counter\nsettled_total{answer=\"fenced\",x=\"1\"} 2\nsettled_total{answer=\"applied\"} 40\n\
                    settled_total{answer=\"fenced\",x=\"2\"} 3 1700000000\nsettled_total_other 9\nplain 7\n";
        assert!((sum(text, "settled_total", &[("answer", "fenced")]) - 5.0).abs() < f64::EPSILON);
        assert!((sum(text, "settled_total", &[]) - 45.0).abs() < f64::EPSILON);
        assert!((sum(text, "plain", &[]) - 7.0).abs() < f64::EPSILON);
        assert!(sum(text, "absent", &[]).abs() < f64::EPSILON);
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
