//! Rules about what a crate is called, and what comes with the repository.

use super::{Finding, tree::Tree};

/// The two licences that a user may choose from.
const LICENCES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];

/// The file that maps the code.
const MAP: &str = "ARCHITECTURE.md";

pub(super) fn folder_is_name(tree: &Tree) -> Vec<Finding> {
    let named = tree.crates().filter_map(|(folder, manifest)| {
        let name = package_name(manifest)?;
        let last = folder.rsplit('/').next()?;
        (name != last).then(|| format!("{folder}: the crate is called {name}"))
    });
    named.collect()
}

fn package_name(manifest: &str) -> Option<&str> {
    let package = manifest.split("[package]").nth(1)?;
    let line = package.lines().find(|line| line.starts_with("name"))?;
    line.split('"').nth(1)
}

pub(super) fn in_code_map(tree: &Tree) -> Vec<Finding> {
    let Some(map) = tree.text(MAP) else {
        return vec![format!("{MAP} is missing")];
    };
    let folders = tree.crates().map(|(folder, _)| folder.rsplit('/').next().unwrap_or(folder));
    let missing = folders.filter(|name| !map.contains(&format!("`{name}`")) && !map.contains(&format!("`{name}/`")));
    missing.map(|name| format!("{MAP} does not name `{name}`")).collect()
}

pub(super) fn documented(tree: &Tree) -> Vec<Finding> {
    let roots = tree.crates().flat_map(|(folder, _)| ["lib", "main"].map(|root| format!("{folder}/src/{root}.rs")));
    let bare = roots.filter(|path| tree.text(path).is_some_and(|text| !text.trim_start().starts_with("//!")));
    bare.map(|path| format!("{path} does not begin with `//!`")).collect()
}

pub(super) fn licensed(tree: &Tree) -> Vec<Finding> {
    LICENCES.iter().filter(|file| tree.text(file).is_none()).map(|file| format!("{file} is missing")).collect()
}

pub(super) fn migrations(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let files =
        tree.files().filter(|(path, _)| path.starts_with("migrations/") && super::tree::has_extension(path, "sql"));
    for ((path, text), number) in files.zip(1_u32..) {
        if !path.starts_with(&format!("migrations/{number:04}_")) {
            findings.push(format!("{path}: number {number:04} was expected here"));
        }
        if !text.trim_start().starts_with("--") {
            findings.push(format!("{path}: begins without a comment that says what it is for"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"worker\"\n";

    #[test]
    fn folder_and_crate_name_are_compared() {
        assert!(folder_is_name(&Tree::of(&[("crates/worker/Cargo.toml", MANIFEST)])).is_empty());
        let findings = folder_is_name(&Tree::of(&[("crates/other/Cargo.toml", MANIFEST)]));
        assert_eq!(findings, ["crates/other: the crate is called worker"]);
    }

    #[test]
    fn code_map_has_to_name_every_crate_as_code() {
        let map = |text| Tree::of(&[("crates/worker/Cargo.toml", MANIFEST), (MAP, text)]);
        assert!(in_code_map(&map("the `worker` crate")).is_empty());
        assert_eq!(in_code_map(&map("a worker")).len(), 1);
        assert_eq!(in_code_map(&Tree::of(&[])).len(), 1);
    }

    #[test]
    fn library_without_documentation_is_found() {
        let tree = |text| Tree::of(&[("crates/worker/Cargo.toml", MANIFEST), ("crates/worker/src/lib.rs", text)]);
        assert!(documented(&tree("//! Workers.\n")).is_empty());
        assert_eq!(documented(&tree("mod pool;\n")).len(), 1);
    }

    #[test]
    fn missing_licence_is_named() {
        assert_eq!(licensed(&Tree::of(&[("LICENSE-MIT", "…")])), ["LICENSE-APACHE is missing"]);
    }

    #[test]
    fn migrations_count_up_and_explain_themselves() {
        let good = Tree::of(&[("migrations/0001_a.sql", "-- why\n"), ("migrations/0002_b.sql", "\n-- why\n")]);
        assert!(migrations(&good).is_empty());
        let bad = Tree::of(&[("migrations/0001_a.sql", "create table t ();"), ("migrations/0003_b.sql", "-- why\n")]);
        assert_eq!(migrations(&bad).len(), 2);
    }
}
