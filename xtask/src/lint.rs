//! `cargo xtask lint`: everything that is checked without running the system.

use std::process::ExitCode;

use anyhow::bail;
use tokio::process::Command;

use crate::{interrupt::Interrupt, query_data, run, tidy};

/// Runs every check, also after one has failed, and names those that did.
pub async fn run(interrupt: &mut Interrupt) -> anyhow::Result<ExitCode> {
    let mut failed = Vec::new();
    for (name, command) in commands() {
        eprintln!("lint: {name}");
        if !run::status(command, interrupt).await?.success() {
            failed.push(name);
        }
    }
    eprintln!("lint: tidy");
    if tidy::run(interrupt).await? != ExitCode::SUCCESS {
        failed.push("tidy");
    }
    eprintln!("lint: sqlx --check");
    if let Err(error) = query_data::run(&query_data::Args { check: true }, interrupt).await {
        eprintln!("error: {error:#}");
        failed.push("sqlx --check");
    }
    if !failed.is_empty() {
        bail!("lint failed: {}", failed.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

fn commands() -> Vec<(&'static str, Command)> {
    let cargo = |arguments: &[&str]| {
        let mut command = run::cargo();
        command.args(arguments);
        command
    };
    let mut documents = cargo(&["doc", "--quiet", "--workspace", "--no-deps"]);
    documents.env("RUSTDOCFLAGS", "-D warnings");
    let mut commands = vec![
        ("formatting", cargo(&["fmt", "--all", "--check"])),
        ("clippy", cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"])),
        ("documentation", documents),
    ];
    if run::on_path("cargo-deny") {
        // Advisories need a database from the network: the pipeline's machines may not have it.
        let deny = ["deny", "--log-level", "error", "check", "licenses", "bans", "sources"];
        commands.push(("licences and sources", cargo(&deny)));
    } else {
        eprintln!("lint: cargo-deny is not installed, so licences are not checked");
    }
    commands
}
