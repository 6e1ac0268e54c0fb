//! URLs as handlers, against a server of the test.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use client::v1::{AttemptEnd, JobState};
use queue_core::NewJob;
use tokio::net::TcpListener;

use crate::jobs::{attempts, ends, enqueue, is, job_in};
use crate::system::system;

type Seen = Arc<Mutex<Vec<(HeaderMap, String)>>>;

/// Answers with the status that the body names, the second time with 200, and keeps what it saw.
async fn serve(seen: Seen) -> SocketAddr {
    let answer = move |headers: HeaderMap, body: String| async move {
        let first = headers.get("fencepost-attempt").is_some_and(|attempt| attempt == "1");
        let status = body.parse().ok().and_then(|status| StatusCode::from_u16(status).ok());
        seen.lock().expect("no panic").push((headers, body));
        match status {
            Some(status) if first => (status, [("retry-after", "1")], "why").into_response(),
            _ => Response::new("result".into()),
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
    let address = listener.local_addr().expect("has an address");
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/", post(answer))).await });
    address
}

#[tokio::test]
async fn the_stable_idempotency_key_and_the_fencing_token_are_handed_to_an_http_handler() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let seen = Seen::default();
        let url = format!("a=http://{}/", serve(seen.clone()).await);
        let _worker = system.exec_worker(&[&scheduler], &[], &["--http", &url, "--effect", "a"]);
        let traceparent = Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned());
        let keyed = NewJob { traceparent, ..attempts(job_in("default", "a", "503"), 2) }.with_key("pay-7");
        let id = enqueue(&client, keyed.expect("a key")).await;
        let done = is(&client, id, JobState::Succeeded).await;
        assert_eq!(ends(&done), [AttemptEnd::Failed, AttemptEnd::Succeeded]);
        assert_eq!((done.result.as_deref(), done.effect.as_deref()), (Some(&b"result"[..]), Some(&b"result"[..])));
        let seen = seen.lock().expect("no panic");
        let header = |at: usize, name: &str| seen[at].0[name].to_str().expect("a text").to_owned();
        for at in 0..2 {
            assert_eq!(
                (header(at, "idempotency-key").as_str(), header(at, "fencepost-job-id")),
                ("pay-7", id.to_string())
            );
            assert_eq!(header(at, "fencepost-fencing-token"), done.attempts[at].token.to_string());
            assert!(header(at, "traceparent").contains("4bf92f3577b34da6a3ce929d0e0e4736"));
            assert_eq!(seen[at].1, "503");
        }
    })
    .await;
}

#[tokio::test]
async fn http_statuses_decide_and_retry_after_is_honoured() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let url = format!("a=http://{}/", serve(Seen::default()).await);
        let _worker = system.exec_worker(&[&scheduler], &[], &["--http", &url]);
        for status in ["404", "400", "301"] {
            let id = enqueue(&client, attempts(job_in("default", "a", status), 2)).await;
            let dead = is(&client, id, JobState::Dead).await;
            assert_eq!(
                (ends(&dead), dead.attempts[0].error_code.clone()),
                (vec![AttemptEnd::Failed], format!("http_{status}"))
            );
            assert_eq!(dead.attempts[0].error, "why");
        }
        // The policy would try again at once.
        let again = ["429", "500"].map(|status| attempts(job_in("default", "a", status), 2));
        for again in again {
            let id = enqueue(&client, again).await;
            is(&client, id, JobState::Succeeded).await;
        }
        let early = "select count(*) from fencepost.attempt_log a join fencepost.finished f using (job_id)
            where f.started_at - a.ended_at < interval '1 second'";
        assert_eq!(system.db.number(early).await, 0);
    })
    .await;
}
