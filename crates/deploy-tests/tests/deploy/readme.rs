//! The README.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use testbed::{Process, db_test};

use crate::programs::{check_words, program};
use crate::stage::Stage;
use crate::tools::{blocks, example_tools, files, ran, root};

/// Where the README expects the scheduler.
const ADDRESS: &str = "127.0.0.1:7878";
/// The stock worker where `cargo xtask up` has built it.
const WORKER: &str = "target/debug/worker";

fn readme() -> Result<String> {
    fs::read_to_string(root().join("README.md")).context("read README.md")
}

fn examples() -> Result<Vec<String>> {
    files("examples/rust", "rs")?.iter().map(fs::read_to_string).collect::<Result<_, _>>().context("read examples")
}

#[test]
fn rust_in_the_readme_is_that_of_the_examples() -> Result<()> {
    let (readme, examples) = (readme()?, examples()?);
    let blocks = blocks(&readme, "rust");
    ensure!(blocks.len() == examples.len(), "an example is not shown");
    for block in blocks {
        ensure!(examples.iter().any(|example| example.ends_with(block)), "differs from every example:\n{block}");
    }
    Ok(())
}

/// The commands of the README, each on one line.
fn commands(readme: &str) -> Vec<String> {
    let joined = readme.replace("\\\n", "");
    let blocks = blocks(&joined, "console").join("");
    blocks.lines().filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned).collect()
}

/// Does what one command says, against the scheduler of the stage. A worker is returned, so that it lives on.
async fn follow(command: &str, stage: &Stage, tools: &Path) -> Result<Option<Process>> {
    let first = command.split(' ').next().unwrap_or_default();
    let script = match first {
        // The stage is what `cargo xtask up` starts.
        _ if command.starts_with("cargo xtask ") || first == "pip" => return Ok(None),
        WORKER => {
            let worker = format!("exec {} --scheduler {}", program("worker")?.display(), stage.url());
            return Ok(Some(stage.shell(&command.replace(WORKER, &worker))));
        }
        "worker" => {
            let words: Vec<&str> = command.split(' ').skip(1).collect();
            return check_words("worker", &words).map(|()| None);
        }
        "grpcurl" => command.replace(ADDRESS, stage.address()),
        "python" => command.replace("enqueue.py", &format!("enqueue.py --scheduler {}", stage.address())),
        _ => bail!("a command that this test does not know"),
    };
    let path = format!("{}:/usr/bin:/bin", tools.display());
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).current_dir(root()).env("PATH", path).env_remove("FENCEPOST_TOKEN");
    let ended = ran(shell).await;
    let (stdout, stderr) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    ensure!(ended.status.success(), "ended with {}: {stderr}", ended.status);
    let expected = if first == "python" { "{\"user\":7}\n" } else { "\"jobId\": \"" };
    ensure!(stdout.contains(expected), "does not answer {expected}: {stdout}");
    Ok(None)
}

#[tokio::test]
async fn commands_of_the_readme_work_in_the_order_they_stand() -> Result<()> {
    program("scheduler")?;
    let (readme, tools) = (readme()?, example_tools()?);
    let commands = commands(&readme);
    ensure!(commands.iter().any(|command| command.starts_with(WORKER)), "no worker is started");
    db_test(async |db| {
        let stage = Stage::start(db).await;
        let mut workers = Vec::new();
        for command in &commands {
            match follow(command, &stage, &tools).await {
                Ok(worker) => workers.extend(worker),
                Err(error) => panic!("{command}\n{error:#}"),
            }
        }
    })
    .await;
    Ok(())
}
