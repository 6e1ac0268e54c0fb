//! The tables of settings in docs/configuration.md.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::programs::{PROGRAMS, flags, help, variables};
use crate::tools::root;

fn page() -> Result<String> {
    fs::read_to_string(root().join("docs/configuration.md")).context("read docs/configuration.md")
}

/// The help of every program, or of its subcommands where it has some.
fn helps() -> Result<Vec<String>> {
    let mut helps = Vec::new();
    for (name, subcommands) in PROGRAMS {
        if subcommands.is_empty() {
            helps.push(help(name, &[])?);
        }
        for subcommand in subcommands {
            helps.push(help(name, &[subcommand])?);
        }
    }
    Ok(helps)
}

#[test]
fn every_flag_and_variable_is_documented() -> Result<()> {
    let page = page()?;
    for help in helps()? {
        for setting in flags(&help).into_iter().chain(variables(&help)) {
            let known = ["--help", "--version"].contains(&setting.as_str()) || page.contains(&format!("`{setting}`"));
            ensure!(known, "docs/configuration.md does not have {setting}");
        }
    }
    Ok(())
}

#[test]
fn every_documented_flag_and_variable_exists() -> Result<()> {
    let helps = helps()?;
    let page = page()?;
    let words = page.split('`').skip(1).step_by(2);
    for word in words.filter(|word| word.starts_with("--") || word.starts_with("FENCEPOST_")) {
        ensure!(
            helps.iter().any(|help| help.contains(word)),
            "docs/configuration.md has {word}, which no program knows"
        );
    }
    Ok(())
}

#[test]
fn every_default_is_documented() -> Result<()> {
    let page = page()?;
    for help in helps()? {
        for default in help.split("[default: ").skip(1).filter_map(|rest| rest.split(']').next()) {
            ensure!(page.contains(&format!("`{default}`")), "docs/configuration.md has no default {default}");
        }
    }
    Ok(())
}
