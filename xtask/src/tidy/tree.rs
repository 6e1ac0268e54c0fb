//! The text files of the repository.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, ensure};
use tokio::process::Command;

/// Files by path from the root, with `/` between folders.
#[derive(Debug, Default)]
pub(super) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads all files that are committed or could be.
    pub(super) async fn read(root: &Path) -> anyhow::Result<Self> {
        let mut git = Command::new("git");
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
        let output = git.output().await.context("start git")?;
        ensure!(output.status.success(), "list the files: {}", String::from_utf8_lossy(&output.stderr).trim());
        let listed = String::from_utf8(output.stdout).context("read the list of files")?;
        let mut files = BTreeMap::new();
        for path in listed.split('\0').filter(|path| !path.is_empty()) {
            // Binary files have no lines to check; a deleted file that is still in the index is none.
            if let Ok(text) = fs::read_to_string(root.join(path)) {
                files.insert(path.to_owned(), text);
            }
        }
        Ok(Self { files })
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        Self { files: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect() }
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// All paths and texts, sorted.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// The text of one file.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Whether there is such a file or folder.
    pub(super) fn has(&self, path: &str) -> bool {
        let below = format!("{path}/");
        path.is_empty() || self.files.contains_key(path) || self.files.keys().any(|file| file.starts_with(&below))
    }

    /// The folders of crates: those with a manifest of a package.
    pub(super) fn crates(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter_map(|(path, text)| {
            let folder = path.strip_suffix("/Cargo.toml")?;
            text.contains("[package]").then_some((folder, text))
        })
    }

    /// The Rust files below a folder.
    pub(super) fn sources<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let below = format!("{folder}/");
        self.files().filter(move |(path, _)| path.starts_with(&below) && has_extension(path, "rs"))
    }
}

/// Whether the name ends so, as these files are named by people who write small letters.
pub(super) fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == extension)
}
