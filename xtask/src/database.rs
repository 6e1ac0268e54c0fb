//! The database of a stack: a private server's, or one made for it on a server of the user's.

use std::path::Path;

use anyhow::Context as _;
use private_postgres::{Binaries, Options, PrivatePostgres};

use crate::{hex::hex, pinned, postgres, psql::Psql, run};

/// The scheduler's role in a private server; it owns nothing.
const APP_ROLE: &str = "fencepost_scheduler";

/// Bytes of randomness in a role's password and in the name of a scratch database.
const RANDOM_BYTES: usize = 16;

/// A database that belongs to one run.
#[derive(Debug)]
pub struct Database {
    /// Owns the schema, and migrates it.
    pub owner: Psql,
    /// What the schedulers use.
    pub scheduler: Psql,
    /// The role to grant the schedulers' rights to.
    pub app_role: Option<&'static str>,
    home: Home,
}

#[derive(Debug)]
enum Home {
    Private(PrivatePostgres),
    Scratch { admin: Psql, name: String },
}

impl Database {
    /// Makes a database: on the server of `DATABASE_URL` if that is given, else on a private server with durable commits.
    pub async fn make(given: Option<&str>, log: &Path) -> anyhow::Result<Self> {
        match given {
            Some(url) => Self::scratch(url).await,
            None => Self::private(log).await,
        }
    }

    async fn private(log: &Path) -> anyhow::Result<Self> {
        let options = Options { fsync: true, log: Some(log.to_owned()), ..Options::default() };
        let server = postgres::start(options).await?;
        let admin = postgres::psql(&server)?;
        let password = random()?;
        admin.run("create database fencepost").await.context("make a database")?;
        admin.run(&format!("create role {APP_ROLE} login password '{password}'")).await.context("make a role")?;
        let owner = admin.database("fencepost");
        let scheduler = owner.role(APP_ROLE, &password)?;
        Ok(Self { owner, scheduler, app_role: Some(APP_ROLE), home: Home::Private(server) })
    }

    async fn scratch(url: &str) -> anyhow::Result<Self> {
        let programs = if run::on_path("psql") { None } else { Some(pinned::find_or_download().await?) };
        let admin = Psql::new(url, programs.as_ref().map(Binaries::folder))?;
        let name = format!("fencepost_{}", random()?);
        let made = admin.run(&format!("create database {name}")).await;
        made.with_context(|| format!("make a database on {} (DATABASE_URL)", admin.shown()))?;
        let owner = admin.database(&name);
        // A role would belong to the whole server, which is the user's.
        Ok(Self { scheduler: owner.clone(), owner, app_role: None, home: Home::Scratch { admin, name } })
    }

    /// A command line to look into it; its password comes from a file or from the user's own URL.
    pub fn psql_line(&self) -> String {
        match &self.home {
            Home::Private(server) => {
                let program = server.programs().join("psql");
                format!("PGPASSFILE={} {} {}", server.passfile().display(), program.display(), self.owner.shown())
            }
            Home::Scratch { .. } => format!("psql {}", self.owner.shown()),
        }
    }

    /// Removes it, and the server if that was made for it.
    pub async fn remove(self) -> anyhow::Result<()> {
        match self.home {
            Home::Private(server) => postgres::stop(server).await,
            // A killed worker's scheduler may still hold connections for a moment.
            Home::Scratch { admin, name } => {
                let dropped = admin.run(&format!("drop database {name} with (force)")).await;
                dropped.with_context(|| format!("drop the database {name} on {}", admin.shown()))
            }
        }
    }
}

fn random() -> anyhow::Result<String> {
    use std::io::Read as _;
    let mut bytes = [0; RANDOM_BYTES];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .context("read random bytes")?;
    Ok(hex(&bytes))
}
