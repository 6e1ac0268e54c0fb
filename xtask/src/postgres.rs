//! The private PostgreSQL of a task.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::Context as _;
use private_postgres::{Options, PrivatePostgres};
use tokio::process::Command;

use crate::{interrupt::Interrupt, run, workspace};

/// Starts a server below `target/`.
pub async fn start(options: Options) -> anyhow::Result<PrivatePostgres> {
    let folder = workspace::target().join("postgres");
    let start = move || PrivatePostgres::start(&folder, &options);
    tokio::task::spawn_blocking(start).await.context("wait for PostgreSQL to start")?
}

/// Stops a server and removes its folder.
pub async fn stop(server: PrivatePostgres) -> anyhow::Result<()> {
    tokio::task::spawn_blocking(|| server.stop()).await.context("wait for PostgreSQL to stop")?
}

/// Runs files of SQL in a database of the server, each in a transaction, up to the first error.
pub async fn apply(
    server: &PrivatePostgres,
    database: &str,
    files: &[PathBuf],
    interrupt: &mut Interrupt,
) -> anyhow::Result<()> {
    for file in files {
        let mut psql = psql(server, database);
        psql.args(["--quiet", "--single-transaction", "--file"]).arg(file).stdout(Stdio::null());
        run::success(psql, interrupt).await.with_context(|| format!("apply {}", file.display()))?;
    }
    Ok(())
}

/// `psql` on a database of the server; the password comes from a file.
fn psql(server: &PrivatePostgres, database: &str) -> Command {
    let mut command = Command::new(client(server.programs(), "psql"));
    command.env("PGPASSFILE", server.passfile()).env("PGOPTIONS", "-c client_min_messages=warning");
    command.args(["--no-psqlrc", "--no-password", "--set", "ON_ERROR_STOP=1", "--host", "127.0.0.1", "--port"]);
    command.arg(server.port().to_string()).args(["--username", private_postgres::SUPERUSER, "--dbname", database]);
    command
}

/// A client program from the server's folder, else from PATH.
fn client(programs: &Path, name: &str) -> OsString {
    let beside = programs.join(name);
    if beside.is_file() { beside.into() } else { name.into() }
}
