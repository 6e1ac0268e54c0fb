//! The account that runs the server: `initdb` and `postgres` refuse to run as root.

use std::{fs, os::unix::process::CommandExt as _, path::Path, process::Command};

use anyhow::Context as _;

/// The number that every Linux distribution and macOS's overflow account agree on for "nobody".
const NOBODY: Account = Account { uid: 65534, gid: 65534 };

/// An unprivileged user and its primary group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    /// The account to change to: none unless this process is root; then `postgres` where it exists, else nobody.
    pub(crate) fn to_become() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        Some(Self::named(&passwd, "postgres").unwrap_or(NOBODY))
    }

    fn named(passwd: &str, name: &str) -> Option<Self> {
        let fields: Vec<&str> = passwd
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>())
            .find(|fields| fields.first() == Some(&name))?;
        let account = Self { uid: fields.get(2)?.parse().ok()?, gid: fields.get(3)?.parse().ok()? };
        (account.uid != 0).then_some(account)
    }

    /// Makes the command run as this account; the standard library then drops the supplementary groups too.
    pub(crate) fn apply(self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid);
    }

    /// Gives a file or folder to this account.
    pub(crate) fn own(self, path: &Path) -> anyhow::Result<()> {
        std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid))
            .with_context(|| format!("give {} to user {}", path.display(), self.uid))
    }

    /// Whether this account can enter the folder, which a parent closed to it (such as `/root`) prevents.
    pub(crate) fn can_enter(self, folder: &Path) -> bool {
        let mut probe = Command::new("true");
        self.apply(&mut probe);
        // The standard library changes the user before the folder, so that a closed parent fails the spawn.
        probe.current_dir(folder).status().is_ok_and(|status| status.success())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_is_read_from_passwd_lines() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\npostgres:x:101:104:,,,:/var/lib/postgresql:/bin/sh\nbad:x\n";
        assert_eq!(Account::named(passwd, "postgres"), Some(Account { uid: 101, gid: 104 }));
        assert_eq!(Account::named(passwd, "bad"), None);
        assert_eq!(Account::named(passwd, "absent"), None);
    }

    #[test]
    fn an_alias_of_root_is_never_chosen() {
        assert_eq!(Account::named("postgres:x:0:0::/root:/bin/sh", "postgres"), None);
    }
}
