//! The rule that documents lead somewhere.

use super::{
    Finding,
    tree::{Tree, has_extension},
};

pub(super) fn broken(tree: &Tree) -> Vec<Finding> {
    let documents = tree.files().filter(|(path, _)| has_extension(path, "md"));
    let links = documents.flat_map(|(path, text)| targets(text).map(move |target| (path, target)));
    let local = links.filter(|(_, target)| !target.contains(':') && !target.starts_with('#'));
    local
        .filter(|(path, target)| !resolve(path, target).is_some_and(|file| tree.has(&file)))
        .map(|(path, target)| format!("{path}: {target}"))
        .collect()
}

/// What stands in the round brackets of `[text](target)`, outside of code blocks.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    let prose = text.lines().filter(move |line| {
        code ^= line.trim_start().starts_with("```");
        !code
    });
    prose.flat_map(|line| line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()))
}

/// The path from the root; `None` for a target outside of the repository.
fn resolve(document: &str, target: &str) -> Option<String> {
    let target = target.split('#').next().unwrap_or(target);
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in target.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop()?;
        } else {
            parts.push(part);
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_from_the_folder_of_the_document() {
        let text = "[a](../proto/a.proto#x) [b](https://example.org) [c](#top) [d](./b.md \"title\") [e](../proto)\n\
                    ```\n[no](nowhere)\n```\n[f](gone.md) [g](../../outside.md)";
        let tree = Tree::of(&[("docs/a.md", text), ("docs/b.md", ""), ("proto/a.proto", "")]);
        assert_eq!(broken(&tree), ["docs/a.md: gone.md", "docs/a.md: ../../outside.md"]);
    }
}
