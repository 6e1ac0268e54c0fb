//! A disk of a given size that can be filled.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};

/// Set where mounts are this process's own, so that they end with it.
const OWN_MOUNTS: &str = "FENCEPOST_E2E_OWN_MOUNTS";

/// What is written at a time.
static BLOCK: [u8; 1 << 16] = [b'x'; 1 << 16];

/// A mounted disk; unmounted on drop.
#[derive(Debug)]
pub(crate) struct Disk {
    folder: PathBuf,
}

/// Why no disk can be made here, if so.
pub(crate) fn lacks() -> Option<&'static str> {
    let own = std::env::var_os(OWN_MOUNTS);
    own.is_none().then_some("it takes root and a mount namespace of its own")
}

impl Disk {
    /// A disk of so many MiB, in memory, at a new folder.
    pub(crate) fn mount(folder: &Path, mib: u32) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let size = format!("size={mib}m");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "disk"]).arg(folder).status();
        ensure!(status.context("start mount")?.success(), "no disk could be mounted");
        Ok(Self { folder: folder.to_owned() })
    }

    /// Takes what is free.
    pub(crate) fn fill(&self) -> anyhow::Result<()> {
        let mut ballast = File::create(self.ballast()).context("fill the disk")?;
        // To the last block, then to the last byte.
        while ballast.write_all(&BLOCK).is_ok() {}
        while ballast.write_all(&BLOCK[..1]).is_ok() {}
        Ok(())
    }

    /// Gives it back.
    pub(crate) fn free(&self) -> anyhow::Result<()> {
        fs::remove_file(self.ballast()).context("free the disk")
    }

    fn ballast(&self) -> PathBuf {
        self.folder.join("ballast")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // What still has files open there is about to end, and the mount with it.
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
    }
}
