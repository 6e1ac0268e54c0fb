//! The stock worker as a process: http handlers against a real server.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use queue_proto::millis;
use queue_proto::v1;
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::fake::{grant, patiently};
use crate::stock::{failed, outcome, start, succeeded};

/// A server that answers as its path says. Returns its URL, and what tells that a request was aborted.
async fn serve() -> (String, Arc<Notify>) {
    let aborted = Arc::new(Notify::new());
    let routes = Router::new()
        .route("/echo", post(echo))
        .route("/status/{status}", post(|Path(status): Path<u16>| async move { plain(status) }))
        .route("/busy/{after}", post(busy))
        .route(
            "/authorization",
            post(|headers: HeaderMap| async move { format!("{:?}", headers.get("authorization")) }),
        )
        .route("/large", post(|| async { vec![b'x'; 2 << 20] }))
        .route("/hang", post(hang))
        .with_state(aborted.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (url, aborted)
}

async fn echo(headers: HeaderMap, body: Bytes) -> String {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("-").to_owned();
    let names = ["idempotency-key", "x-tenant", "traceparent", "fencepost-attempt", "fencepost-fencing-token"];
    let values: Vec<_> = names.into_iter().map(header).collect();
    format!("{} {}", values.join(" "), String::from_utf8_lossy(&body))
}

fn plain(status: u16) -> Response {
    (StatusCode::from_u16(status).unwrap(), [("location", "/echo")], "because").into_response()
}

async fn busy(Path(after): Path<String>) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", after)]).into_response()
}

async fn hang(State(aborted): State<Arc<Notify>>) {
    struct Told(Arc<Notify>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let _told = Told(aborted);
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_posts_the_payload_with_key_and_headers_and_takes_the_body_as_result() {
    let (url, _) = serve().await;
    let (worker, mut session, _fake) = start(&["--http", &format!("echo={url}/echo")]).await;
    let job = v1::Grant {
        payload: "payload".into(),
        idempotency_key: Some("key-1".to_owned()),
        headers: [("x-tenant".to_owned(), "acme".to_owned()), ("content-length".to_owned(), "1".to_owned())].into(),
        traceparent: Some("00-a-b-01".to_owned()),
        ..grant(1, "echo")
    };
    let result = succeeded(outcome(&mut session, job).await);
    assert_eq!(result.result.as_deref(), Some(&b"key-1 acme 00-a-b-01 1 10 payload"[..]));
    assert_eq!(result.effect, None);
    let without_key = succeeded(outcome(&mut session, grant(2, "echo")).await);
    assert!(without_key.result.unwrap().starts_with(b"job-2 - "));
    drop(worker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_sends_any_key_and_no_header_of_a_job_in_place_of_the_operators() {
    let (url, _) = serve().await;
    let authorized = url.replace("http://", "http://operator:secret@");
    let echo = format!("echo={url}/echo");
    let handlers = ["--http", &echo, "--http", &format!("authorized={authorized}/authorization")];
    let (worker, mut session, _fake) = start(&handlers).await;
    let key = Some("a\nb 100% \u{e9}".to_owned());
    let result = succeeded(outcome(&mut session, v1::Grant { idempotency_key: key, ..grant(1, "echo") }).await);
    assert!(result.result.unwrap().starts_with(b"a%0Ab%20100%25%20%C3%A9 - "));
    let headers = [("Authorization".to_owned(), "Bearer job".to_owned())].into();
    let result = succeeded(outcome(&mut session, v1::Grant { headers, ..grant(2, "authorized") }).await);
    let header = String::from_utf8(result.result.unwrap().to_vec()).unwrap();
    assert!(header.contains("Basic "), "{header}");
    let headers = [("x-note".to_owned(), "a\nb".to_owned())].into();
    let failed = failed(outcome(&mut session, v1::Grant { headers, ..grant(3, "echo") }).await);
    assert_eq!((failed.code.as_str(), failed.retryable), ("unsendable_header", false));
    assert!(failed.message.contains("x-note"), "{}", failed.message);
    drop(worker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_status_and_retry_after_decide() {
    let (url, _) = serve().await;
    let handlers: Vec<_> = [
        ("k500", "/status/500"),
        ("k429", "/status/429"),
        ("k404", "/status/404"),
        ("k302", "/status/302"),
        ("busy", "/busy/7"),
        ("large", "/large"),
    ]
    .iter()
    .map(|(kind, path)| format!("--http={kind}={url}{path}"))
    .chain(["--http=gone=http://127.0.0.1:9/".to_owned()])
    .collect();
    let (worker, mut session, _fake) = start(&handlers.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let cases = [
        ("k500", "http_500", true),
        ("k429", "http_429", true),
        ("k404", "http_404", false),
        ("k302", "http_302", false),
        ("busy", "http_503", true),
        ("large", "result_too_large", false),
        ("gone", "http_broken", true),
    ];
    for (job, (kind, code, retryable)) in (1..).zip(cases) {
        let failed = failed(outcome(&mut session, grant(job, kind)).await);
        assert_eq!((failed.code.as_str(), failed.retryable), (code, retryable), "{kind}");
        assert_eq!(failed.retry_after, (kind == "busy").then(|| millis(Duration::from_secs(7))));
        if kind == "k404" {
            assert_eq!(failed.message, "because");
        }
    }
    drop(worker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_requests_are_aborted_when_the_attempt_ends() {
    let (url, aborted) = serve().await;
    let (worker, mut session, _fake) = start(&["--http", &format!("hang={url}/hang")]).await;
    let timeout = Some(millis(Duration::from_millis(200)));
    session.grant([v1::Grant { timeout, ..grant(1, "hang") }]).await;
    assert_eq!(failed(session.applied_outcome(1).await).code, "timeout");
    patiently("the request to be aborted", aborted.notified()).await;
    drop(worker);
}
