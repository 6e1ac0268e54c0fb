//! Tools from outside that the checks need, and the checkout that they are applied to.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};

/// The top of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Files of a folder that have the extension, in the order of their names.
pub fn files(folder: &str, extension: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root().join(folder)).with_context(|| format!("read {folder}"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
    files.sort();
    ensure!(!files.is_empty(), "{folder} has no .{extension} files");
    Ok(files)
}

/// The code blocks of a document that are in the language.
pub fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    page.split(&format!("```{language}\n")).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// Runs a command to its end and returns its standard output. An exit status other than zero is an error that says why.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ended with {}:\n{stdout}{stderr}", output.status);
    Ok(stdout)
}

/// Runs a command to its end without holding up the test's other tasks.
pub async fn ran(mut command: Command) -> Output {
    let name = format!("{command:?}");
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("no panic");
    output.unwrap_or_else(|error| panic!("run {name}: {error}"))
}

/// Whether `tool` is there. Where it is not, the caller returns early: said aloud, and forbidden on CI.
pub fn present(tool: &str, package: &str) -> Result<bool> {
    if Command::new(tool).arg("--version").output().is_ok() {
        return Ok(true);
    }
    ensure!(!on_ci(), "{tool} is missing: apt-get install --no-install-recommends {package}");
    eprintln!("SKIPPED: {tool} is missing (package {package})");
    Ok(false)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test has no command line; runners of CI say what they are in this way"
)]
fn on_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| !value.is_empty())
}

/// The folder of the Python and the grpcurl that the examples are run with, installed now if they were not.
pub fn example_tools() -> Result<PathBuf> {
    static TOOLS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    TOOLS
        .get_or_init(|| install_example_tools().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(anyhow::Error::msg)
}

fn install_example_tools() -> Result<PathBuf> {
    let target = target()?;
    output(Command::new(root().join("examples/test")).arg("--install").env("CARGO_TARGET_DIR", &target))?;
    Ok(target.join("tools/examples/bin"))
}

/// The target folder: tests are in `PROFILE/deps` below it.
fn target() -> Result<PathBuf> {
    let test = std::env::current_exe().context("find the test's own file")?;
    Ok(test.ancestors().nth(3).context("find the target folder")?.to_owned())
}

/// A Python that has the packages of `requirements.txt`, made once below `target/`.
pub fn python() -> Result<PathBuf> {
    static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PYTHON.get_or_init(|| make_python().map_err(|error| format!("{error:#}"))).clone().map_err(anyhow::Error::msg)
}

fn make_python() -> Result<PathBuf> {
    let requirements = Path::new(env!("CARGO_MANIFEST_DIR")).join("requirements.txt");
    let wanted = std::fs::read_to_string(&requirements).context("read requirements.txt")?;
    let home = target()?.join("tools/deploy-tests");
    let (python, installed) = (home.join("bin/python"), home.join("installed.txt"));
    if std::fs::read_to_string(&installed).is_ok_and(|found| found == wanted) {
        return Ok(python);
    }
    output(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home)).context("make a Python environment")?;
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
    output(Command::new(&python).args(install).arg(&requirements)).context("install the pinned packages")?;
    std::fs::write(installed, wanted).context("note what is installed")?;
    Ok(python)
}
