//! One run's database.

use std::time::Duration;

use anyhow::Context as _;
use queue_store::{Store, StoreConfig};

use crate::{
    psql::Psql,
    rig::{Rig, TEMPLATE},
};

/// Bound on everything that a floor does in the database.
const BOUND: Duration = Duration::from_mins(1);

/// A database that belongs to one run, as its superuser sees it.
#[derive(Debug)]
pub(crate) struct Database {
    /// A way in.
    pub(crate) psql: Psql,
    admin: Psql,
    name: String,
}

impl Database {
    /// An empty one.
    pub(crate) async fn fresh(rig: &Rig) -> anyhow::Result<Self> {
        Self::copy(rig, TEMPLATE).await
    }

    /// A copy of a database that nobody uses.
    pub(crate) async fn copy(rig: &Rig, template: &str) -> anyhow::Result<Self> {
        let name = format!("run_{}", rig.number());
        // Newer servers would write every page of a large one to the WAL.
        let strategy = if template == TEMPLATE || rig.major < 15 { "" } else { "strategy file_copy" };
        rig.admin
            .run(&format!("create database {name} template {template} {strategy}"))
            .await
            .context("make a database")?;
        Ok(Self { psql: rig.admin.database(&name), admin: rig.admin.clone(), name })
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The product's own statements on one connection of each kind.
    pub(crate) fn store(&self) -> anyhow::Result<Store> {
        let config = StoreConfig {
            url: self.psql.url().to_owned(),
            connect_timeout: BOUND,
            statement_timeout: BOUND,
            lock_timeout: BOUND,
            idle_in_transaction_timeout: BOUND,
            hot_connections: 1,
            read_connections: 1,
        };
        Store::new(&config).context("read the database's URL")
    }

    /// Removes it.
    pub(crate) async fn remove(self) -> anyhow::Result<()> {
        self.admin.run(&format!("drop database {} with (force)", self.name)).await.context("remove a database")
    }
}
