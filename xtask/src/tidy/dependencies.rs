//! Rules about what a crate's manifest may ask for.

use super::{Finding, tree::Tree};

/// Dependencies that belong to some crates only, and those crates.
const OWNED: [(&str, &[&str]); 9] = [
    ("sqlx", &["queue-store", "effect-guard", "testbed", "e2e"]),
    ("prost", &["queue-proto"]),
    ("prost-types", &["queue-proto"]),
    ("tonic-prost", &["queue-proto"]),
    ("opentelemetry_sdk", &["telemetry"]),
    ("opentelemetry-otlp", &["telemetry"]),
    ("opentelemetry-prometheus", &["telemetry"]),
    ("tracing-opentelemetry", &["telemetry"]),
    ("tracing-subscriber", &["telemetry"]),
];

/// Dependencies that only generated code names.
const GENERATED: [(&str, &str); 1] = [("queue-proto", "tonic-prost")];

pub(super) fn owned(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (folder, manifest) in tree.crates() {
        let name = folder.rsplit('/').next().unwrap_or(folder);
        for (dependency, owners) in OWNED {
            if !owners.contains(&name) && dependencies(manifest).any(|found| found == dependency) {
                findings.push(format!("{folder} depends on {dependency}, which is for {} only", owners.join(", ")));
            }
        }
    }
    findings
}

pub(super) fn unused(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (folder, manifest) in tree.crates() {
        let name = folder.rsplit('/').next().unwrap_or(folder);
        for dependency in dependencies(manifest).filter(|dependency| !GENERATED.contains(&(name, *dependency))) {
            let identifier = dependency.replace('-', "_");
            if !tree.sources(folder).any(|(_, text)| has_word(text, &identifier)) {
                findings.push(format!("{folder} does not use {dependency}"));
            }
        }
    }
    findings
}

pub(super) fn lints(tree: &Tree) -> Vec<Finding> {
    let without = tree.crates().filter(|(_, manifest)| !manifest.contains("[lints]\nworkspace = true"));
    without.map(|(folder, _)| format!("{folder}/Cargo.toml has no `[lints] workspace = true`")).collect()
}

/// The names below every heading that ends in `dependencies`.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let mut listing = false;
    manifest.lines().filter_map(move |line| {
        if line.starts_with('[') {
            listing = line.trim_end().ends_with("dependencies]");
            return None;
        }
        let name = line.split(['.', '=', ' ']).next()?;
        (listing && !name.is_empty() && !name.starts_with('#')).then_some(name)
    })
}

/// Whether the text has the identifier as a whole word.
fn has_word(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| !text[..at].ends_with(part) && !text[at + word.len()..].starts_with(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_with(dependency: &str, source: &str) -> Tree {
        let manifest = format!(
            "[package]\nname = \"console\"\n[dev-dependencies]\n# why\n{dependency}\n[lints]\nworkspace = true\n"
        );
        Tree::of(&[("crates/console/Cargo.toml", &manifest), ("crates/console/src/lib.rs", source)])
    }

    #[test]
    fn sql_outside_of_its_crates_is_found() {
        assert_eq!(owned(&crate_with("sqlx.workspace = true", "")).len(), 1);
        assert!(owned(&crate_with("sqlx-like = \"1\"", "")).is_empty());
        assert!(owned(&crate_with("client = { workspace = true }", "")).is_empty());
    }

    #[test]
    fn dependency_counts_as_used_only_as_a_whole_word() {
        assert!(unused(&crate_with("tokio-util.workspace = true", "use tokio_util::sync;")).is_empty());
        assert_eq!(unused(&crate_with("tokio = \"1\"", "use tokio_util::sync;")).len(), 1);
    }

    #[test]
    fn crate_without_the_workspace_lints_is_found() {
        assert!(lints(&crate_with("", "")).is_empty());
        assert_eq!(lints(&Tree::of(&[("crates/x/Cargo.toml", "[package]\n")])).len(), 1);
    }
}
