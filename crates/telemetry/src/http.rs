//! `/metrics`, `/healthz` and `/readyz`.

use std::net::{SocketAddr, TcpListener};

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus::{Encoder, Registry, TEXT_FORMAT, TextEncoder};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::Readiness;

#[derive(Clone)]
struct Served {
    registry: Registry,
    readiness: Readiness,
}

/// Binds the address now, so that a port in use is an error at start, and serves until the task is aborted.
pub(crate) fn serve(
    address: SocketAddr,
    registry: Registry,
    readiness: Readiness,
) -> anyhow::Result<(SocketAddr, JoinHandle<()>)> {
    let listener = TcpListener::bind(address).with_context(|| format!("listen on --metrics-listen {address}"))?;
    listener.set_nonblocking(true).context("make the metrics listener asynchronous")?;
    let bound = listener.local_addr().context("read the address of the metrics listener")?;
    let listener = tokio::net::TcpListener::from_std(listener).context("register the metrics listener")?;
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(Served { registry, readiness });
    let task = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "metrics server stopped");
        }
    });
    Ok((bound, task))
}

async fn metrics(State(served): State<Served>) -> Response {
    let mut body = Vec::new();
    match TextEncoder::new().encode(&served.registry.gather(), &mut body) {
        Ok(()) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot encode metrics: {error}\n")).into_response(),
    }
}

async fn ready(State(served): State<Served>) -> Response {
    match served.readiness.check(Instant::now()) {
        Ok(()) => "ready\n".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")).into_response(),
    }
}
