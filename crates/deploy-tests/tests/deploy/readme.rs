//! The README.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use queue_core::RetryPolicy;
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

#[test]
fn manifest_in_the_readme_names_what_the_rust_examples_use() -> Result<()> {
    let readme = readme()?;
    let [manifest] = blocks(&readme, "toml")[..] else { bail!("the README has one manifest") };
    let lines = manifest.strip_prefix("[dependencies]\n").context("it lists dependencies")?.lines();
    let named: BTreeMap<&str, &str> = lines.filter_map(|line| line.split_once(" = ")).collect();
    let used = examples()?.iter().flat_map(|example| crates_of(example)).collect::<BTreeSet<_>>();
    ensure!(
        named.keys().map(|name| name.replace('-', "_")).collect::<BTreeSet<_>>() == used,
        "{named:?}, not {used:?}"
    );
    let workspace = fs::read_to_string(root().join("Cargo.toml")).context("read Cargo.toml")?;
    for (name, value) in named {
        if value.contains("path") {
            ensure!(value == format!("{{ path = \"../fencepost/crates/{name}\" }}"), "{name}: {value}");
            ensure!(root().join("crates").join(name).join("Cargo.toml").exists(), "there is no crate {name}");
        } else {
            let major = value.split('"').nth(1).context("it names a version")?;
            let ours =
                workspace.lines().find(|line| line.starts_with(&format!("{name} = "))).context("it is used here")?;
            ensure!(
                ours.split('"').nth(1).is_some_and(|version| version.starts_with(major)),
                "{name}: {value}, not {ours}"
            );
        }
    }
    Ok(())
}

/// The crates that a program names: what stands first in a path, in small letters.
fn crates_of(program: &str) -> BTreeSet<String> {
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    let code = program.lines().filter(|line| !line.starts_with("//"));
    let names = code.flat_map(|line| {
        line.match_indices("::").filter_map(move |(at, _)| {
            let before = &line[..at];
            let start = before.rfind(|c| !inside(c)).map_or(0, |found| found + 1);
            (!before[..start].ends_with(':')).then(|| before[start..].to_owned())
        })
    });
    names.filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase()) && name != "std").collect()
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

/// How long a job is tried again at least and at most, not counting the time of its attempts.
fn span(policy: &RetryPolicy) -> [Duration; 2] {
    [1.0, 0.0].map(|chance| (1..policy.max_attempts).map(|used| policy.delay(used, chance)).sum())
}

#[test]
fn retries_last_as_long_as_the_readme_says() -> Result<()> {
    let readme = readme()?.replace('\n', " ");
    let default = RetryPolicy::default();
    let [_, most] = span(&default);
    let sentence = format!("dead after {} attempts with at most {} s of waiting", default.max_attempts, most.as_secs());
    ensure!(readme.contains(&sentence), "the README does not say: {sentence}");

    let (_, rest) = readme.split_once("`\"retry\": ").context("the README shows a longer policy")?;
    let (shown, rest) = rest.split_once('`').context("it ends")?;
    let fields: BTreeMap<String, f64> = serde_json::from_str(shown).context("it is JSON")?;
    let longer = RetryPolicy { max_attempts: 20, jitter: 0.2, ..default };
    ensure!(fields == BTreeMap::from([("max_attempts".to_owned(), 20.0), ("jitter".to_owned(), 0.2)]), "{shown}");
    let [least, most] = span(&longer).map(|span| (span.as_secs_f64() / 60.0).round());
    let sentence = format!("it goes on for {least} to {most} minutes");
    ensure!(rest.contains(&sentence), "the README does not say: {sentence}");
    Ok(())
}
