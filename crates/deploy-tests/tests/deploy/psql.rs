//! SQL as a person runs it.

use std::io::Write;
use std::process::Command;

use anyhow::{Context, Result};

use crate::tools::output;

/// Runs a script with `psql`, up to the first error, and returns what it prints, as CSV.
///
/// `url` is that of a test's database.
pub fn psql(url: &str, script: &str) -> Result<String> {
    // What follows the path is for sqlx, and psql refuses what it does not know.
    let url = url.split('?').next().unwrap_or(url);
    let mut file = tempfile::NamedTempFile::new().context("make a file for the script")?;
    file.write_all(script.as_bytes()).context("write the script")?;
    let mut psql = Command::new("psql");
    psql.args(["--no-psqlrc", "--quiet", "--csv", "--set", "ON_ERROR_STOP=1", "--dbname", url, "--file"]);
    output(psql.arg(file.path()))
}
