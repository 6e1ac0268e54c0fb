//! The folder of one cluster.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use crate::{account::Account, binaries::Binaries, command};

/// A new folder with a data folder that the server's account owns; removed on drop.
#[derive(Debug)]
pub(crate) struct Place {
    folder: TempDir,
    account: Option<Account>,
}

impl Place {
    /// Makes the folder below `parent`, or below the system's temporary folder if the server's account cannot get there.
    pub(crate) fn below(parent: &Path) -> anyhow::Result<Self> {
        let account = Account::to_become();
        fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
        let place = Self::make(&fs::canonicalize(parent)?, account)?;
        if place.reachable() {
            return Ok(place);
        }
        let place = Self::make(&std::env::temp_dir(), account)?;
        ensure!(
            place.reachable(),
            "an unprivileged user can reach neither {} nor the temporary folder",
            parent.display()
        );
        Ok(place)
    }

    fn make(parent: &Path, account: Option<Account>) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("postgres-")
            .tempdir_in(parent)
            .with_context(|| format!("make a folder for PostgreSQL in {}", parent.display()))?;
        let place = Self { folder, account };
        fs::create_dir(place.data()).context("make the data folder")?;
        fs::set_permissions(place.data(), fs::Permissions::from_mode(0o700))?;
        if let Some(account) = account {
            // The account may pass through to the data folder, and can list nothing.
            fs::set_permissions(place.path(), fs::Permissions::from_mode(0o711))?;
            account.own(&place.data())?;
        }
        Ok(place)
    }

    fn reachable(&self) -> bool {
        self.account.is_none_or(|account| account.can_enter(&self.data()))
    }

    /// The folder itself.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The server's data folder.
    pub(crate) fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// Where the server's messages go unless the caller wants them elsewhere.
    pub(crate) fn log(&self) -> PathBuf {
        self.path().join("server.log")
    }

    /// A command of PostgreSQL as the server's account, in the data folder.
    pub(crate) fn command(&self, bin: &Path, program: &str) -> Command {
        command::clean(bin.join(program), &self.data(), self.account)
    }

    /// Writes a file that only its owner can read: this process's user, or the server's account.
    pub(crate) fn write_secret(&self, name: &str, content: &str, for_server: bool) -> anyhow::Result<PathBuf> {
        let path = self.path().join(name);
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("create {}", path.display()))?;
        file.write_all(content.as_bytes()).with_context(|| format!("write {}", path.display()))?;
        if let Some(account) = self.account.filter(|_| for_server) {
            account.own(&path)?;
        }
        Ok(path)
    }

    /// The folder of programs that the server's account can run: the installed one, or a copy of a private build that lies where
    /// the account cannot go.
    pub(crate) fn programs(&self, binaries: &Binaries) -> anyhow::Result<PathBuf> {
        let installed = binaries.folder();
        if self.account.is_none_or(|account| account.can_enter(installed)) {
            return Ok(installed.to_owned());
        }
        let root = installed.parent().context("find the root of the PostgreSQL build")?;
        let copy = self.path().join("install");
        let mut cp = Command::new("cp");
        cp.arg("-R").arg(root).arg(&copy);
        command::run(cp, "copy PostgreSQL to where an unprivileged user can run it")?;
        Ok(copy.join(installed.file_name().context("name the folder of the PostgreSQL programs")?))
    }

    /// Removes the folder now and reports what prevented it.
    pub(crate) fn remove(self) -> anyhow::Result<()> {
        let path = self.path().to_owned();
        self.folder.close().with_context(|| format!("remove {}", path.display()))
    }
}
