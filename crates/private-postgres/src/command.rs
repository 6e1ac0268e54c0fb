//! Commands of PostgreSQL, run with nothing inherited that would change what they do.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

use crate::account::Account;

/// Takes from a command what would lead a client of PostgreSQL elsewhere or change its session: the user's `PG*` variables
/// and `DATABASE_URL`, which are meant for another server.
pub fn forget_client_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let bytes = name.as_encoded_bytes();
        if bytes.starts_with(b"PG") || bytes == b"DATABASE_URL" {
            command.env_remove(name);
        }
    }
}

/// A command in a given folder, as a given account, without the user's settings of clients and with English messages.
pub(crate) fn clean(program: PathBuf, folder: &Path, account: Option<Account>) -> Command {
    let mut command = Command::new(program);
    forget_client_settings(&mut command);
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
