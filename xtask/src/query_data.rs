//! `cargo xtask sqlx`: the committed descriptions of the queries that are checked at compile time.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::ExitCode,
    time::SystemTime,
};

use anyhow::{Context as _, bail};
use private_postgres::{Options, PrivatePostgres};

use crate::{interrupt::Interrupt, postgres, run, workspace};

/// A crate with checked queries.
const CRATE: &str = "queue-store";

/// What `cargo xtask sqlx` is told.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Changes nothing; fails if the committed descriptions are not those of the schema.
    #[arg(long)]
    pub check: bool,
}

/// Descriptions by file name.
type Descriptions = BTreeMap<String, String>;

/// Builds the queries against a fresh database with all migrations, and keeps or compares what that wrote.
pub async fn run(args: &Args, interrupt: &mut Interrupt) -> anyhow::Result<ExitCode> {
    let server = postgres::start(Options::default()).await?;
    let described = describe(&server, interrupt).await;
    postgres::stop(server).await?;
    let (described, committed) = (described?, workspace::root().join("crates").join(CRATE).join(".sqlx"));
    if args.check {
        compare(&read(&committed)?, &described)?;
    } else {
        write(&committed, &described)?;
        eprintln!("{} query descriptions in crates/{CRATE}/.sqlx", described.len());
    }
    Ok(ExitCode::SUCCESS)
}

async fn describe(server: &PrivatePostgres, interrupt: &mut Interrupt) -> anyhow::Result<Descriptions> {
    let migrations = workspace::migrations().context("list the migrations")?;
    let psql = postgres::psql(server)?;
    for migration in &migrations {
        psql.apply(migration).await?;
    }
    let written = fresh_folder()?;
    let source = workspace::root().join("crates").join(CRATE).join("src/lib.rs");
    touch(&source).with_context(|| format!("touch {}", source.display()))?;
    let mut cargo = run::cargo();
    cargo.args(["check", "--quiet", "--lib", "--package", CRATE]);
    cargo.env("DATABASE_URL", server.url("postgres")).env("SQLX_OFFLINE", "false").env("SQLX_OFFLINE_DIR", &written);
    run::success(cargo, interrupt).await.context("build the queries against the schema")?;
    read(&written)
}

/// The macros write only into a folder that exists.
fn fresh_folder() -> anyhow::Result<PathBuf> {
    let folder = workspace::target().join("sqlx").join(CRATE);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("empty {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(folder)
}

/// Makes cargo expand the macros again, though nothing that it knows of has changed.
#[expect(clippy::disallowed_methods, reason = "a file's age is what cargo compares")]
fn touch(path: &Path) -> std::io::Result<()> {
    File::options().append(true).open(path)?.set_modified(SystemTime::now())
}

fn read(folder: &Path) -> anyhow::Result<Descriptions> {
    let mut found = Descriptions::new();
    if !folder.exists() {
        return Ok(found);
    }
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        found.insert(name, fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?);
    }
    Ok(found)
}

fn write(folder: &Path, described: &Descriptions) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    for name in read(folder)?.keys().filter(|name| !described.contains_key(*name)) {
        fs::remove_file(folder.join(name)).with_context(|| format!("remove {name}"))?;
    }
    for (name, content) in described {
        fs::write(folder.join(name), content).with_context(|| format!("write {name}"))?;
    }
    Ok(())
}

fn compare(committed: &Descriptions, described: &Descriptions) -> anyhow::Result<()> {
    let missing = described.keys().filter(|name| !committed.contains_key(*name));
    let left_over = committed.keys().filter(|name| !described.contains_key(*name));
    let other = described.iter().filter(|(name, content)| committed.get(*name).is_some_and(|there| there != *content));
    let lines: Vec<String> = missing
        .map(|name| format!("{name}: not committed"))
        .chain(left_over.map(|name| format!("{name}: of no query")))
        .chain(other.map(|(name, _)| format!("{name}: not what the schema says")))
        .collect();
    if !lines.is_empty() {
        bail!("the query descriptions need `cargo xtask sqlx`:\n  {}", lines.join("\n  "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptions(entries: &[(&str, &str)]) -> Descriptions {
        entries.iter().map(|(name, content)| ((*name).to_owned(), (*content).to_owned())).collect()
    }

    #[test]
    fn every_kind_of_difference_is_named() -> anyhow::Result<()> {
        let committed = descriptions(&[("same", "1"), ("old", "1"), ("changed", "1")]);
        let described = descriptions(&[("same", "1"), ("new", "1"), ("changed", "2")]);
        compare(&committed, &committed)?;
        let message = compare(&committed, &described).err().context("differences were accepted")?.to_string();
        for line in ["new: not committed", "old: of no query", "changed: not what the schema says"] {
            assert!(message.contains(line), "{message}");
        }
        assert!(!message.contains("same"));
        Ok(())
    }
}
