//! Where things are in the repository.

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Cargo's output folder.
pub fn target() -> PathBuf {
    // Relative to the caller's folder, as for cargo itself.
    let given = std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty());
    given.and_then(|folder| std::path::absolute(folder).ok()).unwrap_or_else(|| root().join("target"))
}

/// The migrations, in the order in which they are applied.
pub fn migrations() -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root().join("migrations"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "sql") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
