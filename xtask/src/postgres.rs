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

/// Whether the server comes with this loadable module.
pub async fn has_module(name: &str) -> anyhow::Result<bool> {
    let binaries = pinned::find_or_download().await?;
    // Debian has it two folders up from the programs in `lib`, others in a folder of its own below that.
    let root = binaries.folder().parent().unwrap_or(binaries.folder());
    let folders = ["lib", "lib/postgresql", "lib64/pgsql"].map(|folder| root.join(folder));
    Ok(folders.iter().any(|folder| ["so", "dylib"].iter().any(|end| folder.join(format!("{name}.{end}")).is_file())))
}

/// A way into the server's first database.
pub fn psql(server: &PrivatePostgres) -> anyhow::Result<Psql> {
    Psql::new(&server.url("postgres"), Some(server.programs()))
}
