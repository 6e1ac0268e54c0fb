//! The README.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::tools::{files, root};

#[test]
fn rust_in_the_readme_is_that_of_the_examples() -> Result<()> {
    let readme = fs::read_to_string(root().join("README.md")).context("read README.md")?;
    let examples = files("examples/rust", "rs")?;
    let examples = examples.iter().map(fs::read_to_string).collect::<Result<Vec<_>, _>>().context("read examples")?;
    let blocks = || readme.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next());
    ensure!(blocks().count() == examples.len(), "an example is not shown");
    for block in blocks() {
        ensure!(examples.iter().any(|example| example.ends_with(block)), "differs from every example:\n{block}");
    }
    Ok(())
}
