//! The programs as they are built here, and what they say of themselves.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::tools::{output, root};

/// Programs of the image, each with its subcommands.
pub const PROGRAMS: [(&str, &[&str]); 3] = [("scheduler", &["serve", "migrate"]), ("worker", &[]), ("reaper", &[])];

/// The file of a program, compiled now if it was not.
pub fn program(name: &str) -> Result<PathBuf> {
    static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
    BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}"))).clone().map_err(anyhow::Error::msg)?;
    // Tests are in `deps`, below the programs.
    let test = std::env::current_exe().context("find the test's own file")?;
    let folder = test.ancestors().nth(2).context("find the folder of the programs")?;
    Ok(folder.join(name))
}

fn build() -> Result<()> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args(["build", "--quiet", "--locked", "--bins"]);
    cargo.args(PROGRAMS.iter().flat_map(|(name, _)| ["--package", name]));
    output(&mut cargo).map(drop).context("compile the programs")
}

/// The `--help` of a program, or of its subcommand if `words` begin with one.
pub fn help(name: &str, words: &[&str]) -> Result<String> {
    let subcommand = words.first().filter(|word| !word.starts_with('-'));
    output(Command::new(program(name)?).args(subcommand).arg("--help"))
}

/// The long flags that a help text names.
pub fn flags(help: &str) -> BTreeSet<String> {
    let definitions = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    definitions
        .flat_map(|line| line.split([' ', ',', '=', '[', '<']))
        .filter(|word| word.starts_with("--"))
        .map(str::to_owned)
        .collect()
}

/// The environment variables that a help text names.
pub fn variables(help: &str) -> BTreeSet<String> {
    let names = help.split("[env: ").skip(1);
    names.filter_map(|rest| rest.split([']', '=']).next()).map(|name| name.trim().to_owned()).collect()
}

/// The default that a help text gives for a flag, as a duration.
pub fn default_of(help: &str, flag: &str) -> Result<Duration> {
    let Some((_, rest)) = help.split_once(&format!("{flag} ")) else { bail!("no {flag} in:\n{help}") };
    let (_, rest) = rest.split_once("[default: ").with_context(|| format!("{flag} has no default in:\n{help}"))?;
    let text = rest.split(']').next().unwrap_or_default();
    let seconds = text.strip_suffix('s').with_context(|| format!("default of {flag} is not in seconds: {text}"))?;
    Ok(Duration::from_secs(seconds.parse().with_context(|| format!("read the default of {flag}: {text}"))?))
}

/// Refuses words that the program does not take: a flag that is not in its help.
pub fn check_words(name: &str, words: &[&str]) -> Result<()> {
    let help = help(name, words)?;
    let known = flags(&help);
    for word in words.iter().filter(|word| word.starts_with("--")) {
        let flag = word.split('=').next().unwrap_or(word);
        if !known.contains(flag) {
            bail!("{name} has no {flag}; it has {known:?}");
        }
    }
    Ok(())
}
