//! The private PostgreSQL of a task.

use anyhow::Context as _;
use private_postgres::{Options, PrivatePostgres};

use crate::{pinned, psql::Psql, workspace};

/// Starts a server below `target/`.
pub async fn start(mut options: Options) -> anyhow::Result<PrivatePostgres> {
    options.binaries = Some(pinned::find_or_download().await?);
    let folder = workspace::target().join("postgres");
    let start = move || PrivatePostgres::start(&folder, &options);
    tokio::task::spawn_blocking(start).await.context("wait for PostgreSQL to start")?
}

/// Stops a server and removes its folder.
pub async fn stop(server: PrivatePostgres) -> anyhow::Result<()> {
    tokio::task::spawn_blocking(|| server.stop()).await.context("wait for PostgreSQL to stop")?
}

/// A way into the server's first database.
pub fn psql(server: &PrivatePostgres) -> anyhow::Result<Psql> {
    Psql::new(&server.url("postgres"), Some(server.programs()))
}
