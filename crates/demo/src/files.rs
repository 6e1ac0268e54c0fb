//! The files that the demonstration reads.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, ensure};
use tokio::process::Command;

/// Files below a folder, or of the dependencies' sources: at most `limit`, spread evenly.
pub(crate) async fn collect(dir: Option<&Path>, limit: usize) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for folder in &roots(dir).await? {
        walk(folder, &mut files).with_context(|| format!("list {}", folder.display()))?;
    }
    // The example worker takes paths that are text.
    files.retain(|file| file.to_str().is_some());
    Ok(spread(files, limit))
}

async fn roots(dir: Option<&Path>) -> anyhow::Result<Vec<PathBuf>> {
    let Some(dir) = dir else {
        return dependencies().await;
    };
    Ok(vec![dir.canonicalize().with_context(|| format!("find {}", dir.display()))?])
}

/// The source folders of everything that the workspace depends on.
async fn dependencies() -> anyhow::Result<Vec<PathBuf>> {
    let mut metadata = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    metadata.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &host().await?]);
    let output = metadata.stderr(Stdio::inherit()).output().await.context("start cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata ended with {}; give a folder with --dir", output.status);
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).context("read cargo's metadata")?;
    let packages = metadata["packages"].as_array().context("read the packages in cargo's metadata")?;
    let foreign = packages.iter().filter(|package| package["source"].is_string());
    let manifests = foreign.filter_map(|package| package["manifest_path"].as_str());
    let folders: BTreeSet<PathBuf> = manifests.filter_map(|path| Some(Path::new(path).parent()?.to_owned())).collect();
    Ok(folders.into_iter().collect())
}

/// The platform, so that sources for others are not downloaded.
async fn host() -> anyhow::Result<String> {
    let output = Command::new("rustc").arg("-vV").output().await.context("start rustc")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("read rustc's platform")
}

/// Adds all regular files below a folder, sorted; links are not followed.
fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type()?;
        if kind.is_dir() {
            walk(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// So many of them, at even distances: of every crate and every size.
fn spread(files: Vec<PathBuf>, limit: usize) -> Vec<PathBuf> {
    let (found, wanted) = (files.len(), limit.min(files.len()));
    // File number i is the first of its share when a new share of `wanted` shares begins with it.
    let chosen =
        files.into_iter().enumerate().filter(|(i, _)| i * wanted / found.max(1) != (i + 1) * wanted / found.max(1));
    chosen.map(|(_, file)| file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_are_taken_if_few_and_evenly_spread_if_many() {
        let files: Vec<PathBuf> = (0..10).map(|i| PathBuf::from(i.to_string())).collect();
        assert_eq!(spread(files.clone(), 20), files);
        assert_eq!(spread(files.clone(), 10), files);
        assert_eq!(spread(files.clone(), 2), ["4", "9"].map(PathBuf::from));
        assert_eq!(spread(files, 7).len(), 7);
        assert!(spread(Vec::new(), 7).is_empty());
    }

    #[test]
    fn folders_are_walked_without_following_links() -> anyhow::Result<()> {
        let root = tempfile::tempdir()?;
        fs::create_dir(root.path().join("b"))?;
        fs::write(root.path().join("b/two"), "")?;
        fs::write(root.path().join("one"), "")?;
        std::os::unix::fs::symlink(root.path(), root.path().join("loop"))?;
        let mut files = Vec::new();
        walk(root.path(), &mut files)?;
        assert_eq!(files, [root.path().join("b/two"), root.path().join("one")]);
        Ok(())
    }
}
