//! SQL by way of `psql`, so that no task needs a driver.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, ensure};
use tokio::{io::AsyncWriteExt as _, process::Command};
use url::Url;

/// A way into one database; the password never is on a command line.
#[derive(Clone, Debug)]
pub struct Psql {
    program: OsString,
    url: Url,
    password: String,
}

impl Psql {
    /// The database of a URL. `programs` is looked into first, then PATH.
    pub fn new(url: &str, programs: Option<&Path>) -> anyhow::Result<Self> {
        // The text of the error would be safe, but not the URL.
        let mut url = Url::parse(url).ok().context("read DATABASE_URL: it is not a URL")?;
        ensure!(matches!(url.scheme(), "postgres" | "postgresql"), "DATABASE_URL is not a postgres:// URL");
        let password = decoded(url.password().unwrap_or_default()).context("decode the password of DATABASE_URL")?;
        ensure!(url.set_password(None).is_ok(), "DATABASE_URL has no host");
        Ok(Self { program: program(programs), url, password })
    }

    /// Another database of the same server.
    pub fn database(&self, name: &str) -> Self {
        let mut other = self.clone();
        other.url.set_path(name);
        other
    }

    /// The same database for another role.
    pub fn role(&self, name: &str, password: &str) -> anyhow::Result<Self> {
        let mut other = self.clone();
        ensure!(other.url.set_username(name).is_ok(), "the database's URL has no host");
        password.clone_into(&mut other.password);
        Ok(other)
    }

    /// The URL with its password, for an environment variable.
    pub fn url(&self) -> String {
        let mut url = self.url.clone();
        // Encodes what needs it. It fails without a host only, and then there was no password either.
        let _ = url.set_password((!self.password.is_empty()).then_some(self.password.as_str()));
        url.to_string()
    }

    /// The URL without its password, for people.
    pub fn shown(&self) -> &str {
        self.url.as_str()
    }

    /// Runs statements up to the first error.
    pub async fn run(&self, sql: &str) -> anyhow::Result<()> {
        let mut command = self.command();
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("start {}", self.program.display()))?;
        let mut input = child.stdin.take().context("write to psql")?;
        // It may end at an error before it has read everything; its message then says more than the broken pipe.
        let _ = input.write_all(sql.as_bytes()).await;
        drop(input);
        let output = child.wait_with_output().await.context("wait for psql")?;
        ensure!(output.status.success(), "psql: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }

    /// Applies a migration: in one transaction, unless its first line says otherwise as sqlx understands it.
    pub async fn apply(&self, file: &Path) -> anyhow::Result<()> {
        let sql = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let whole = if sql.starts_with("-- no-transaction") { sql } else { format!("begin;\n{sql}\ncommit;\n") };
        self.run(&whole).await.with_context(|| format!("apply {}", file.display()))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["--no-psqlrc", "--no-password", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname"]);
        command.arg(self.url.as_str()).env("PGOPTIONS", "-c client_min_messages=warning").kill_on_drop(true);
        if !self.password.is_empty() {
            command.env("PGPASSWORD", &self.password);
        }
        command
    }
}

/// `psql` beside the server's programs, else from PATH.
fn program(programs: Option<&Path>) -> OsString {
    let beside = programs.map(|folder| folder.join("psql")).filter(|path| path.is_file());
    beside.map_or_else(|| "psql".into(), PathBuf::into)
}

/// Undoes percent-encoding.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_is_in_the_url_for_programs_and_not_in_the_one_for_people() -> anyhow::Result<()> {
        let psql = Psql::new("postgres://me:p%40ss%2F@db.example:5433/main?sslmode=require", None)?;
        assert_eq!(psql.password, "p@ss/");
        assert_eq!(psql.shown(), "postgres://me@db.example:5433/main?sslmode=require");
        assert_eq!(psql.url(), "postgres://me:p%40ss%2F@db.example:5433/main?sslmode=require");
        assert_eq!(psql.database("x").role("you", "")?.url(), "postgres://you@db.example:5433/x?sslmode=require");
        Ok(())
    }

    #[test]
    fn what_is_no_database_url_is_refused_without_showing_it() {
        for url in ["secret", "http://me:secret@host/", "postgres://me:%zz@host/"] {
            let message = Psql::new(url, None).err().map(|error| format!("{error:#}")).unwrap_or_default();
            assert!(message.contains("DATABASE_URL") && !message.contains("secret"), "{message}");
        }
    }
}
