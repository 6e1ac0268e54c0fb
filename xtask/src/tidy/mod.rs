//! `cargo xtask tidy`: the rules of the repository that prose cannot hold.
//!
//! A rule is a function from the tree to what it finds, listed in [`RULES`] with the reason that a person gets to read.

use std::process::ExitCode;

use anyhow::Context as _;
use tokio::process::Command;

use crate::{interrupt::Interrupt, run, workspace};

mod crates;
mod dependencies;
mod links;
mod text;
mod tree;

use tree::Tree;

/// One place that breaks a rule, such as `crates/worker/src/pool.rs:12: …`.
type Finding = String;

/// One rule: what it asks for, and its check.
struct Rule {
    ask: &'static str,
    check: fn(&Tree) -> Vec<Finding>,
}

const RULES: [Rule; 12] = [
    Rule { ask: "SQL, protobuf and telemetry set-up stay in the crates that own them", check: dependencies::owned },
    Rule { ask: "a dependency is used, or leaves the manifest", check: dependencies::unused },
    Rule { ask: "every crate takes the workspace's lints", check: dependencies::lints },
    Rule { ask: "a crate's folder has the crate's name", check: crates::folder_is_name },
    Rule { ask: "every crate is in the code map of ARCHITECTURE.md", check: crates::in_code_map },
    Rule { ask: "every crate begins with its documentation", check: crates::documented },
    Rule { ask: "the licence files are there", check: crates::licensed },
    Rule { ask: "migrations are numbered without gaps and begin with a comment", check: crates::migrations },
    Rule { ask: "lints are expected with a reason and never allowed; nothing is left for later", check: text::banned },
    Rule { ask: "no file of code is longer than 500 lines", check: text::long },
    Rule { ask: "no path of somebody's machine", check: text::private_paths },
    Rule { ask: "links in documents lead to files", check: links::broken },
];

/// Checks all rules, and the protocol with `buf lint` where buf is installed.
pub async fn run(interrupt: &mut Interrupt) -> anyhow::Result<ExitCode> {
    let tree = Tree::read(workspace::root()).await?;
    let mut broken = 0;
    for rule in &RULES {
        let findings = (rule.check)(&tree);
        if !findings.is_empty() {
            broken += 1;
            eprintln!("{}:\n  {}", rule.ask, findings.join("\n  "));
        }
    }
    if !protocol_is_clean(interrupt).await? {
        broken += 1;
    }
    eprintln!("tidy: {} files, {} rules, {broken} broken", tree.len(), RULES.len() + 1);
    Ok(if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn protocol_is_clean(interrupt: &mut Interrupt) -> anyhow::Result<bool> {
    let mut probe = Command::new("buf");
    probe.arg("--version").stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    if !probe.status().await.is_ok_and(|status| status.success()) {
        eprintln!("tidy: buf is not installed, so the protocol is not linted");
        return Ok(true);
    }
    let mut lint = Command::new("buf");
    lint.args(["lint", "proto"]).current_dir(workspace::root());
    Ok(run::status(lint, interrupt).await.context("lint the protocol")?.success())
}
