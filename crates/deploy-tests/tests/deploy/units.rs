//! systemd units: accepted by systemd, hardened, and true to the programs.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::programs::{check_words, default_of, help};
use crate::tools::{files, output, present};

const UNITS: &str = "deploy/systemd";
/// systemd's own measure of exposure, 0 to 100. What is left of it is mostly the network, which a service needs.
const MAX_EXPOSURE: &str = "--threshold=20";
/// What it takes to be told of the end, to give jobs back, and to flush.
const MARGIN: Duration = Duration::from_secs(10);

/// Text of a unit or drop-in with its continued lines joined.
fn joined(path: &Path) -> Result<String> {
    Ok(fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?.replace("\\\n", " "))
}

/// Values of a setting in a unit, without the empty ones that reset it.
fn values<'a>(unit: &'a str, setting: &str) -> Vec<&'a str> {
    let lines = unit.lines().filter_map(|line| line.strip_prefix(setting)?.strip_prefix('='));
    lines.filter(|value| !value.is_empty()).collect()
}

#[test]
fn units_are_accepted_by_systemd() -> Result<()> {
    if present("systemd-analyze", "systemd")? {
        let folder = tempfile::tempdir().context("make a folder for the units")?;
        accepted(&copies(folder.path())?)?;
    }
    Ok(())
}

#[test]
fn units_with_tls_drop_ins_are_accepted_by_systemd() -> Result<()> {
    if present("systemd-analyze", "systemd")? {
        let folder = tempfile::tempdir().context("make a folder for the units")?;
        let units = copies(folder.path())?;
        for path in files(UNITS, "conf")? {
            let name = path.file_stem().and_then(OsStr::to_str).and_then(|name| name.strip_suffix("-tls"));
            let unit = format!("fencepost-{}.service.d", name.context("a drop-in is called PROGRAM-tls.conf")?);
            fs::create_dir(folder.path().join(&unit)).context("make a folder for the drop-in")?;
            fs::write(folder.path().join(unit).join("tls.conf"), with_stand_ins(&path)?).context("copy a drop-in")?;
        }
        accepted(&units)?;
    }
    Ok(())
}

/// Copies of the units whose programs are there: the real ones are not installed where the units look for them.
fn copies(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut copies = Vec::new();
    for path in files(UNITS, "service")? {
        let copy = folder.join(path.file_name().context("a unit has a name")?);
        fs::write(&copy, with_stand_ins(&path)?).context("copy a unit")?;
        copies.push(copy);
    }
    Ok(copies)
}

fn accepted(units: &[PathBuf]) -> Result<()> {
    let result = Command::new("systemd-analyze").arg("verify").args(units).output().context("run systemd-analyze")?;
    let said = String::from_utf8_lossy(&result.stderr);
    ensure!(result.status.success() && !said.contains("fencepost"), "systemd-analyze says:\n{said}");
    Ok(())
}

fn with_stand_ins(path: &Path) -> Result<String> {
    Ok(joined(path)?.lines().map(|line| stand_in(line) + "\n").collect())
}

fn stand_in(line: &str) -> String {
    match line.strip_prefix("ExecStart=/usr/local/bin/") {
        Some(command) => format!("ExecStart=/bin/true {command}"),
        None => line.to_owned(),
    }
}

#[test]
fn units_are_hardened() -> Result<()> {
    if !present("systemd-analyze", "systemd")? {
        return Ok(());
    }
    for path in files(UNITS, "service")? {
        let mut security = Command::new("systemd-analyze");
        output(security.args(["security", "--offline=true", "--no-pager", MAX_EXPOSURE]).arg(&path))?;
        let unit = joined(&path)?;
        for setting in ["DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict"] {
            ensure!(unit.lines().any(|line| line == setting), "{} lacks {setting}", path.display());
        }
    }
    Ok(())
}

#[test]
fn units_hold_no_secrets() -> Result<()> {
    for path in files(UNITS, "service")?.into_iter().chain(files(UNITS, "conf")?) {
        let unit = joined(&path)?;
        ensure!(values(&unit, "Environment").is_empty(), "{} sets variables in the open", path.display());
        let open = ["postgres://", "postgresql://", "--token=", "PASSWORD"];
        ensure!(!open.iter().any(|secret| unit.contains(secret)), "{} holds a secret", path.display());
    }
    Ok(())
}

#[test]
fn stop_time_is_longer_than_the_drain() -> Result<()> {
    let drain = default_of(&help("worker", &[])?, "--grace")?;
    for path in files(UNITS, "service")? {
        let unit = joined(&path)?;
        if values(&unit, "Type") == ["oneshot"] {
            continue;
        }
        let stop = values(&unit, "TimeoutStopSec").first().and_then(|value| value.parse().ok());
        let stop = Duration::from_secs(stop.with_context(|| format!("{} has no stop time", path.display()))?);
        ensure!(stop >= drain + MARGIN, "{} has {stop:?}, the drain takes {drain:?}", path.display());
    }
    Ok(())
}

#[test]
fn programs_know_the_flags_that_units_give_them() -> Result<()> {
    for path in files(UNITS, "service")?.into_iter().chain(files(UNITS, "conf")?) {
        let unit = joined(&path)?;
        for command in values(&unit, "ExecStart") {
            let words: Vec<&str> = command.split_whitespace().collect();
            let (program, words) = words.split_first().context("ExecStart names a program")?;
            let program = program.rsplit('/').next().unwrap_or(program);
            check_words(program, words).with_context(|| format!("read {}", path.display()))?;
        }
    }
    Ok(())
}
