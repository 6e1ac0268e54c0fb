//! SQL by way of `psql`: set-up and counters, never what is measured.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, ensure};
use tokio::{
    io::AsyncWriteExt as _,
    process::{Child, Command},
};
use url::Url;

/// A way into one database; the password never is on a command line.
#[derive(Clone, Debug)]
pub(crate) struct Psql {
    program: PathBuf,
    url: Url,
}

impl Psql {
    /// The database of a URL, whose password is plain text.
    pub(crate) fn new(program: &Path, url: &str) -> anyhow::Result<Self> {
        // The text of the error would not show the URL either.
        let url = Url::parse(url).ok().context("read the database's URL")?;
        Ok(Self { program: program.to_owned(), url })
    }

    /// Another database of the same server.
    pub(crate) fn database(&self, name: &str) -> Self {
        let mut other = self.clone();
        other.url.set_path(name);
        other
    }

    /// The same database for another role.
    pub(crate) fn role(&self, name: &str, password: &str) -> anyhow::Result<Self> {
        let mut other = self.clone();
        let set = other.url.set_username(name).and_then(|()| other.url.set_password(Some(password)));
        ensure!(set.is_ok(), "the database's URL has no host");
        Ok(other)
    }

    /// The URL with its password, for an environment variable.
    pub(crate) fn url(&self) -> &str {
        self.url.as_str()
    }

    /// Runs statements up to the first error; each is a transaction of its own.
    pub(crate) async fn run(&self, sql: &str) -> anyhow::Result<()> {
        self.ask(sql).await.map(drop)
    }

    /// The first row's columns; empty where there is none.
    pub(crate) async fn row(&self, sql: &str) -> anyhow::Result<Vec<String>> {
        let text = self.ask(sql).await?;
        Ok(text.lines().next().map(|line| line.split('|').map(str::to_owned).collect()).unwrap_or_default())
    }

    /// The first row, where all columns are numbers.
    pub(crate) async fn numbers<const N: usize>(&self, sql: &str) -> anyhow::Result<[f64; N]> {
        let row = self.row(sql).await?;
        let numbers = row.iter().map(|text| text.parse::<f64>()).collect::<Result<Vec<_>, _>>();
        let numbers = numbers.with_context(|| format!("read {row:?} as numbers"))?;
        <[f64; N]>::try_from(numbers).ok().with_context(|| format!("expected {N} columns, not {row:?}"))
    }

    async fn ask(&self, sql: &str) -> anyhow::Result<String> {
        let mut child = self.command().spawn().with_context(|| format!("start {}", self.program.display()))?;
        let mut input = child.stdin.take().context("write to psql")?;
        // It may end at an error before it has read everything; its message then says more than the broken pipe.
        let _ = input.write_all(sql.as_bytes()).await;
        drop(input);
        let output = child.wait_with_output().await.context("wait for psql")?;
        ensure!(output.status.success(), "psql: {}", String::from_utf8_lossy(&output.stderr).trim());
        String::from_utf8(output.stdout).context("read the answer of psql")
    }

    /// Leaves a transaction open that sees the database as it is now, until the child is dropped.
    pub(crate) async fn hold_snapshot(&self) -> anyhow::Result<Child> {
        use tokio::io::AsyncReadExt as _;
        let mut child = self.command().spawn().with_context(|| format!("start {}", self.program.display()))?;
        let input = child.stdin.as_mut().context("write to psql")?;
        input.write_all(b"begin isolation level repeatable read;\nselect 1;\n").await.context("write to psql")?;
        // The answer tells that the snapshot is taken.
        let output = child.stdout.as_mut().context("read from psql")?;
        output.read_u8().await.context("open a transaction")?;
        Ok(child)
    }

    fn command(&self) -> Command {
        let mut bare = self.url.clone();
        // Fails without a host only, and then there is no password either.
        let _ = bare.set_password(None);
        let mut command = Command::new(&self.program);
        command.args(["--no-psqlrc", "--no-password", "--quiet", "--tuples-only", "--no-align", "--set"]);
        command
            .args(["ON_ERROR_STOP=1", "--dbname", bare.as_str()])
            .env("PGPASSWORD", self.url.password().unwrap_or(""));
        command.env("PGOPTIONS", "-c client_min_messages=warning").kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}
