//! The table of settings in docs/configuration.md.

use anyhow::{Context, Result, ensure};

use crate::programs::{PROGRAMS, flags, help, variables};
use crate::tools::root;

#[test]
fn every_flag_and_variable_is_documented_and_no_other() -> Result<()> {
    let path = root().join("docs/configuration.md");
    let page = std::fs::read_to_string(path).context("read docs/configuration.md")?;
    let mut known = std::collections::BTreeSet::new();
    for (name, subcommands) in PROGRAMS {
        let pages = if subcommands.is_empty() { &[""][..] } else { subcommands };
        for subcommand in pages {
            let help = help(name, &[*subcommand].map(|word| if word.is_empty() { "--" } else { word }))?;
            known.extend(flags(&help));
            known.extend(variables(&help));
        }
    }
    for setting in known.iter().filter(|setting| !["--help", "--version"].contains(&setting.as_str())) {
        ensure!(page.contains(&format!("`{setting}`")), "docs/configuration.md does not have {setting}");
    }
    for word in
        page.split('`').skip(1).step_by(2).filter(|word| word.starts_with("--") || word.starts_with("FENCEPOST_"))
    {
        ensure!(known.contains(word), "docs/configuration.md has {word}, which no program knows");
    }
    Ok(())
}
