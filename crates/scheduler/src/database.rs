//! The flags that name the database.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use lifecycle::Secret;

const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];

/// Which database.
#[derive(Debug, Clone)]
pub struct DatabaseArgs {
    flags: DatabaseFlags,
    /// Whether the URL can be seen in the list of processes.
    shown: bool,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Database", about = None, long_about = None)]
struct DatabaseFlags {
    /// URL of the database, with credentials. Without it the variable `DATABASE_URL` is used.
    #[arg(long, env = "FENCEPOST_DATABASE_URL", hide_env_values = true, value_name = "URL", value_parser = secret)]
    database_url: Option<Secret>,

    /// As --database-url, for installations that have only that variable.
    #[arg(long = "fallback-database-url", env = "DATABASE_URL", hide = true, hide_env_values = true, value_parser = secret)]
    fallback: Option<Secret>,

    /// File with the URL of the database, such as a mounted secret. Not together with --database-url.
    #[arg(long, env = "FENCEPOST_DATABASE_URL_FILE", value_name = "FILE")]
    database_url_file: Option<PathBuf>,
}

#[expect(clippy::unnecessary_wraps, reason = "the form of a value parser")]
fn secret(text: &str) -> Result<Secret, String> {
    Ok(Secret::new(text))
}

impl Args for DatabaseArgs {
    fn augment_args(command: Command) -> Command {
        DatabaseFlags::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        DatabaseFlags::augment_args_for_update(command)
    }
}

impl FromArgMatches for DatabaseArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let source = |id| matches.value_source(id);
        // An empty variable is none: that is how deployments leave it out.
        let given = matches.get_one::<Secret>("database_url").is_some_and(|url| !url.expose().is_empty());
        if let Some(file) = source("database_url_file").filter(|_| given) {
            let url = source("database_url").map_or("--database-url", |url| name(url, "--database-url"));
            let file = name(file, "--database-url-file");
            let problem = format!("the database is given twice, by {url} and by {file}: leave one of them out\n");
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, problem));
        }
        let shown = ["database_url", "fallback"].iter().any(|id| source(id) == Some(ValueSource::CommandLine));
        Ok(Self { flags: DatabaseFlags::from_arg_matches(matches)?, shown })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// What a person has to change.
fn name(source: ValueSource, flag: &'static str) -> &'static str {
    match (source, flag) {
        (ValueSource::EnvVariable, "--database-url") => "the variable FENCEPOST_DATABASE_URL",
        (ValueSource::EnvVariable, _) => "the variable FENCEPOST_DATABASE_URL_FILE",
        (_, flag) => flag,
    }
}

impl DatabaseArgs {
    /// The URL, from the flag, the file or the environment. Refuses that of another kind of database; errors do not tell it.
    pub fn url(&self) -> anyhow::Result<String> {
        let url = match &self.flags.database_url_file {
            Some(file) => std::fs::read_to_string(file)
                .with_context(|| format!("read --database-url-file {}", file.display()))?
                .trim()
                .to_owned(),
            None => self.given().context("no database given: set FENCEPOST_DATABASE_URL or --database-url-file")?,
        };
        ensure!(
            SCHEMES.iter().any(|scheme| url.starts_with(scheme)),
            "the URL of the database must begin with postgres:// or postgresql://"
        );
        Ok(url)
    }

    fn given(&self) -> Option<String> {
        let given = [&self.flags.database_url, &self.flags.fallback].into_iter().flatten();
        given.map(|url| url.expose().to_owned()).find(|url| !url.is_empty())
    }

    /// Warns of a password that everybody on this machine can read.
    pub fn warn(&self) {
        if self.shown && self.given().is_some_and(|url| has_password(&url)) {
            tracing::warn!(
                "the password in --database-url is shown in the list of processes: set FENCEPOST_DATABASE_URL or \
                 --database-url-file instead"
            );
        }
    }
}

/// Whether a URL has a password, before the host or among the parameters.
fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    let parameters = rest.split_once('?').map_or("", |(_, parameters)| parameters);
    user.split_once(':').is_some_and(|(_, password)| !password.is_empty())
        || parameters.split('&').any(|parameter| parameter.starts_with("password="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_url_is_found_wherever_it_stands() {
        for url in ["postgres://u:p@h/d", "postgresql://u:p%40@h:1", "postgres://h/d?user=u&password=p"] {
            assert!(has_password(url), "{url}");
        }
        for url in ["postgres://h:5432/d", "postgres://u@h/d", "postgres://u:@h/d", "postgres:///d?host=/a:b@c"] {
            assert!(!has_password(url), "{url}");
        }
    }
}
