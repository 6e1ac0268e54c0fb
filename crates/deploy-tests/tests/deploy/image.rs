//! The container image.

use std::process::Command;

use anyhow::Result;

use crate::tools::{output, present, root};

#[test]
fn image_from_scratch_runs_all_three_programs() -> Result<()> {
    if present("buildah", "buildah")? {
        output(&mut Command::new(root().join("deploy/test-image")))?;
    }
    Ok(())
}
