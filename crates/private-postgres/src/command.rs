//! Commands of PostgreSQL, run with nothing inherited that would change what they do.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

use crate::account::Account;

/// A command in a given folder, as a given account, without the user's `PG*` variables and with English messages.
pub(crate) fn clean(program: PathBuf, folder: &Path, account: Option<Account>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PG")) {
        command.env_remove(name);
    }
    command.env("LC_ALL", "C").current_dir(folder).stdin(Stdio::null());
    if let Some(account) = account {
        account.apply(&mut command);
    }
    command
}

/// Runs a command to its end; its messages become the error when it fails.
pub(crate) fn run(mut command: Command, purpose: &str) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("{purpose}: start {}", command.get_program().display()))?;
    if !output.status.success() {
        let messages = [output.stdout, output.stderr].concat();
        bail!("{purpose}: {}: {}", output.status, String::from_utf8_lossy(&messages).trim());
    }
    Ok(())
}
