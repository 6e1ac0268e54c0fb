//! Rules about single lines and the number of lines.

use super::{
    Finding,
    tree::{Tree, has_extension},
};

/// What code never holds. Put together here, so that this file does not break its own rule.
const BANNED: [&str; 7] = [
    concat!("#[", "allow("),
    concat!("#![", "allow("),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("to", "do!("),
    concat!("un", "implemented!("),
    concat!("dbg", "!("),
];

/// Where the banned words are looked for.
const CODE: [&str; 8] = ["rs", "proto", "sql", "py", "sh", "toml", "yaml", "md"];

/// Code that a person reads as one piece.
const COUNTED: [&str; 5] = ["rs", "proto", "sql", "py", "sh"];

/// The most lines of one file of code.
const MOST_LINES: usize = 500;

/// Beginnings of absolute paths that exist on one machine only.
const PRIVATE: [&str; 4] =
    [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/wo", "rk/")];

pub(super) fn banned(tree: &Tree) -> Vec<Finding> {
    let files = tree.files().filter(|(path, _)| CODE.iter().any(|extension| has_extension(path, extension)));
    files
        .flat_map(|(path, text)| lines_with(path, text, |line| BANNED.into_iter().find(|word| line.contains(word))))
        .collect()
}

pub(super) fn long(tree: &Tree) -> Vec<Finding> {
    let files = tree.files().filter(|(path, _)| COUNTED.iter().any(|extension| has_extension(path, extension)));
    let counted = files.map(|(path, text)| (path, text.lines().count()));
    counted.filter(|(_, lines)| *lines > MOST_LINES).map(|(path, lines)| format!("{path} has {lines} lines")).collect()
}

pub(super) fn private_paths(tree: &Tree) -> Vec<Finding> {
    let private = |line: &str| PRIVATE.into_iter().find(|start| has_absolute(line, start));
    tree.files().flat_map(|(path, text)| lines_with(path, text, private)).collect()
}

/// Whether the line has a path that begins so, and not one that has such a folder further down.
fn has_absolute(line: &str, start: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || "._-~$}*/".contains(c);
    line.match_indices(start).any(|(at, _)| !line[..at].ends_with(inside))
}

fn lines_with(path: &str, text: &str, find: impl Fn(&str) -> Option<&'static str>) -> Vec<Finding> {
    let numbered = text.lines().zip(1_usize..);
    numbered.filter_map(|(line, number)| Some(format!("{path}:{number}: {}", find(line)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_banned_word_is_found_with_its_line() {
        for word in BANNED {
            let text = format!("fn main() {{\n    {word}\n}}\n");
            assert_eq!(banned(&Tree::of(&[("a.rs", &text)])), [format!("a.rs:2: {word}")]);
        }
        assert!(banned(&Tree::of(&[("a.rs", "#[expect(dead_code, reason = \"\")]"), ("a.txt", BANNED[0])])).is_empty());
    }

    #[test]
    fn length_is_bounded_for_code_only() {
        let text = "x\n".repeat(MOST_LINES + 1);
        assert_eq!(long(&Tree::of(&[("a.rs", &text), ("a.md", &text)])), ["a.rs has 501 lines"]);
        assert!(long(&Tree::of(&[("a.rs", &"x\n".repeat(MOST_LINES))])).is_empty());
    }

    #[test]
    fn a_folder_inside_a_path_is_not_somebodys_machine() {
        for start in PRIVATE {
            let absolute = format!("cd {start}x");
            assert_eq!(private_paths(&Tree::of(&[("a", &absolute)])).len(), 1, "{start}");
            let inner = format!("cd src{start}x");
            assert!(private_paths(&Tree::of(&[("a", &inner)])).is_empty(), "{start}");
        }
    }
}
