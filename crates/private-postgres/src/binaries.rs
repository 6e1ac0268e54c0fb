//! Where a PostgreSQL server is installed.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};

/// The oldest major version that is supported.
pub const OLDEST_MAJOR: u32 = 14;

/// What to install when no server was found, in one line.
pub const INSTALL_HINT: &str = "no PostgreSQL server found: install PostgreSQL 14 or newer (Debian, Ubuntu: apt-get install \
     postgresql; Fedora: dnf install postgresql-server; Alpine: apk add postgresql; macOS: brew install postgresql), or set \
     FENCEPOST_PG_BIN to the folder of initdb and postgres, or DATABASE_URL to a server of yours";

/// The program of a folder that decides whether it holds a server.
const PROGRAMS: [&str; 2] = ["initdb", "postgres"];

/// Folders that hold one folder a version, and what follows below that.
const VERSIONED: [(&str, &str, &str); 5] = [
    ("/usr/lib/postgresql", "", "bin"),
    ("/usr", "pgsql-", "bin"),
    ("/opt/homebrew/opt", "postgresql@", "bin"),
    ("/usr/local/opt", "postgresql@", "bin"),
    ("/Applications/Postgres.app/Contents/Versions", "", "bin"),
];

/// A folder with `initdb` and `postgres` of a supported version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    folder: PathBuf,
    major: u32,
}

impl Binaries {
    /// The installed server to use: `FENCEPOST_PG_BIN` if set, else PATH, else the folders of distributions, newest first.
    /// `None` when nothing suitable is installed; an error when `FENCEPOST_PG_BIN` names no usable server.
    pub fn find() -> anyhow::Result<Option<Self>> {
        if let Some(folder) = env::var_os("FENCEPOST_PG_BIN").filter(|folder| !folder.is_empty()) {
            return Self::at(Path::new(&folder)).context("use FENCEPOST_PG_BIN").map(Some);
        }
        let path = env::var_os("PATH").unwrap_or_default();
        let on_path: Vec<PathBuf> = env::split_paths(&path).filter(|folder| folder.is_absolute()).collect();
        let candidates = on_path.into_iter().chain(VERSIONED.into_iter().flat_map(versions));
        Ok(candidates.filter(|folder| holds_server(folder)).find_map(|folder| Self::at(&folder).ok()))
    }

    /// The server in this folder, if it runs here and is new enough.
    pub fn at(folder: &Path) -> anyhow::Result<Self> {
        // Links are followed: a server finds its other files beside its real place.
        let postgres =
            fs::canonicalize(folder.join("postgres")).with_context(|| format!("look into {}", folder.display()))?;
        let folder = postgres.parent().unwrap_or(folder).to_owned();
        ensure!(holds_server(&folder), "{} has no initdb beside postgres", folder.display());
        let output = Command::new(&postgres).arg("--version").output().context("ask the server for its version")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let major = major(&text).with_context(|| format!("read the version of {}: {text:?}", postgres.display()))?;
        ensure!(major >= OLDEST_MAJOR, "{} is version {major}, older than {OLDEST_MAJOR}", postgres.display());
        Ok(Self { folder, major })
    }

    /// The folder of the programs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The major version, such as 15.
    pub fn major(&self) -> u32 {
        self.major
    }
}

fn holds_server(folder: &Path) -> bool {
    PROGRAMS.iter().all(|program| folder.join(program).is_file())
}

/// The `bin` folders of one family, newest version first.
fn versions((parent, prefix, below): (&str, &str, &str)) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().filter_map(Result::ok);
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
            Some((version, entry.path().join(below)))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, folder)| folder).collect()
}

/// Reads `postgres (PostgreSQL) 15.8 (Debian 15.8-0)`, and `17beta1` and `18devel` too.
fn major(text: &str) -> Option<u32> {
    let version = text.split("(PostgreSQL)").nth(1)?.trim_start();
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_version_is_read_from_release_and_development_builds() {
        assert_eq!(major("postgres (PostgreSQL) 15.8 (Debian 15.8-0+deb12u1)\n"), Some(15));
        assert_eq!(major("postgres (PostgreSQL) 19devel"), Some(19));
        assert_eq!(major("something else 3"), None);
    }

    #[test]
    fn newer_versions_come_first_by_number_and_not_by_letter() -> anyhow::Result<()> {
        let family = tempfile::tempdir()?;
        for name in ["9", "14", "16", "common"] {
            fs::create_dir(family.path().join(name))?;
        }
        let parent = family.path().to_str().context("temporary folder in UTF-8")?;
        let found = versions((parent, "", "bin"));
        assert_eq!(found, ["16", "14", "9"].map(|name| family.path().join(name).join("bin")));
        Ok(())
    }

    #[test]
    fn a_folder_without_server_is_refused_by_name() {
        let error = Binaries::at(Path::new("/nonexistent")).map_err(|error| error.to_string());
        assert_eq!(error, Err("look into /nonexistent".to_owned()));
    }
}
