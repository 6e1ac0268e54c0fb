//! `cargo xtask mutate`: takes each predicate of the SQL that fences a write away, one at a time, and sees whether a test notices.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use private_postgres::{Options, PrivatePostgres};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
    time::timeout,
};

use crate::{interrupt::Interrupt, postgres, run, test::MAX_CONNECTIONS, workspace};

/// Where the SQL is.
const SOURCES: &str = "crates/queue-store/src";

/// Packages whose tests are to notice, in the order in which they are asked.
const PACKAGES: [&str; 1] = ["queue-store"];

/// What fences a write is compared in these columns.
const COLUMNS: [&str; 4] = ["token", "epoch", "owner", "session_no"];

/// For the tests of one package without one predicate.
const BOUND: Duration = Duration::from_mins(10);

/// Tests that fail only beside others, before it is given up.
const MAX_UNSTEADY: usize = 5;

/// What `cargo xtask mutate` is told.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only predicates in files whose name contains this, such as `settle`.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Lists the predicates.
    #[arg(long)]
    list: bool,
}

/// One predicate, and what stands in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mutant {
    /// The file, within the folder of sources.
    file: String,
    /// Its line, from 1.
    line: usize,
    /// Where the predicate is in that line.
    at: usize,
    /// The predicate.
    predicate: String,
}

/// What became of a mutant.
#[derive(Debug)]
enum Fate {
    /// This test failed.
    Caught(String),
    /// All tests passed.
    Survived,
}

/// Runs the tests without each predicate. The exit code tells whether all were caught.
pub async fn run(args: &Args, interrupt: &mut Interrupt) -> anyhow::Result<ExitCode> {
    let mutants = mutants(args.only.as_deref().unwrap_or(""))?;
    if args.list {
        for mutant in &mutants {
            println!("{}", mutant.shown());
        }
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(!mutants.is_empty(), "no predicate is in such a file; --list names them");
    let tree = copy().context("copy the repository")?;
    let settings = vec![("max_connections".to_owned(), MAX_CONNECTIONS.to_string())];
    let server = postgres::start(Options { settings, ..Options::default() }).await?;
    let tried = tokio::select! {
        tried = try_all(&mutants, &tree, &server) => tried,
        () = interrupt.wait() => Err(anyhow::anyhow!("interrupted")),
    };
    postgres::stop(server).await?;
    let survivors = tried?;
    println!("{} of {} were caught", mutants.len() - survivors, mutants.len());
    Ok(if survivors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn try_all(mutants: &[Mutant], tree: &Path, server: &PrivatePostgres) -> anyhow::Result<usize> {
    let psql = postgres::psql(server)?;
    for migration in &workspace::migrations().context("list the migrations")? {
        psql.apply(migration).await?;
    }
    if let Fate::Caught(test) = fate(tree, server).await? {
        bail!("{test} fails without any change");
    }
    let mut survivors = 0;
    for mutant in mutants {
        let path = tree.join(SOURCES).join(&mutant.file);
        let original = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        fs::write(&path, mutant.applied(&original)).with_context(|| format!("write {}", path.display()))?;
        let fate = fate(tree, server).await.with_context(|| mutant.shown());
        fs::write(&path, original).with_context(|| format!("write {}", path.display()))?;
        match fate? {
            Fate::Caught(test) => println!("{}: caught by {test}", mutant.shown()),
            Fate::Survived => {
                survivors += 1;
                println!("{}: NOBODY NOTICED", mutant.shown());
            }
        }
    }
    Ok(survivors)
}

impl Mutant {
    fn shown(&self) -> String {
        format!("{}:{}: {}", self.file, self.line, self.predicate)
    }

    /// The file with a predicate that is always true; it still names its parameters, which a statement must use.
    fn applied(&self, text: &str) -> String {
        let with = |(number, line): (usize, &str)| {
            if number + 1 != self.line {
                return line.to_owned();
            }
            let (before, rest) = line.split_at(self.at);
            format!("{before}({} or true){}", self.predicate, &rest[self.predicate.len()..])
        };
        text.lines().enumerate().map(with).collect::<Vec<_>>().join("\n")
    }
}

/// The predicates of all files whose name contains a text.
fn mutants(only: &str) -> anyhow::Result<Vec<Mutant>> {
    let folder = workspace::root().join(SOURCES);
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
        files.push(entry?.path());
    }
    files.sort();
    let mut found = Vec::new();
    for path in files {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if file.contains(only) {
            let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            found.extend(predicates(&file, &text));
        }
    }
    Ok(found)
}

/// Comparisons of fencing columns after `where`, `and` or `on`, and `not dead`.
fn predicates(file: &str, text: &str) -> Vec<Mutant> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        // Assignments look alike, and comments speak of SQL.
        if line.trim_start().starts_with("//") {
            continue;
        }
        let mut words = words(line).peekable();
        while let Some((_, word)) = words.next() {
            if !["where", "and", "on"].contains(&word) {
                continue;
            }
            let Some(&(at, first)) = words.peek() else { continue };
            let rest = &line[at..];
            let length = if first == "not" { negation(rest) } else { comparison(rest) };
            if let Some(length) = length {
                let predicate = rest[..length].to_owned();
                found.push(Mutant { file: file.to_owned(), line: number + 1, at, predicate });
            }
        }
    }
    found
}

/// Words with their places.
fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut next = 0;
    line.split(' ').filter_map(move |word| {
        let at = next;
        next += word.len() + 1;
        (!word.is_empty()).then_some((at, word))
    })
}

/// The length of `not dead` at the beginning.
fn negation(text: &str) -> Option<usize> {
    let word = text.strip_prefix("not ")?;
    let length = operand(word);
    (column(&word[..length]) == "dead").then_some("not ".len() + length)
}

/// The length of a comparison of a fencing column with something else at the beginning.
fn comparison(text: &str) -> Option<usize> {
    let left = operand(text);
    let other = text[left..].strip_prefix(" = ")?;
    let right = operand(other);
    // A comparison with a list goes on behind the word.
    let is_list = &other[..right] == "any";
    (right > 0 && !is_list && COLUMNS.contains(&column(&text[..left]))).then_some(left + " = ".len() + right)
}

/// The length of a name or parameter at the beginning.
fn operand(text: &str) -> usize {
    text.find(|letter: char| !letter.is_ascii_alphanumeric() && !['_', '.', '$'].contains(&letter))
        .unwrap_or(text.len())
}

fn column(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// What git knows of the working tree, in a folder of its own.
fn copy() -> anyhow::Result<PathBuf> {
    let (root, tree) = (workspace::root(), workspace::target().join("mutate"));
    let listed = std::process::Command::new("git").args(["ls-files", "-z"]).current_dir(root).output()?;
    ensure!(listed.status.success(), "git lists no files");
    for name in String::from_utf8(listed.stdout)?.split_terminator('\0') {
        let (from, to) = (root.join(name), tree.join(name));
        fs::create_dir_all(to.parent().context("a file is in a folder")?)?;
        // Unchanged files keep their age, so that only what differs is built again.
        let content = fs::read(&from).with_context(|| format!("read {}", from.display()))?;
        if fs::read(&to).ok().as_ref() != Some(&content) {
            fs::write(&to, content).with_context(|| format!("write {}", to.display()))?;
        }
    }
    Ok(tree)
}

/// Runs the tests, up to the first that fails, and fails again when it runs alone.
async fn fate(tree: &Path, server: &PrivatePostgres) -> anyhow::Result<Fate> {
    for package in PACKAGES {
        let mut build = cargo(tree, server);
        build.args(["test", "--quiet", "--no-run", "--package", package]);
        let output = build.output().await.context("start cargo")?;
        ensure!(output.status.success(), "it does not build:\n{}", String::from_utf8_lossy(&output.stderr));
        let mut unsteady: Vec<String> = Vec::new();
        while let Some(test) = first_failure(tree, server, package, &unsteady).await? {
            let mut alone = cargo(tree, server);
            alone.args(["test", "--quiet", "--package", package, "--", "--exact", &test]);
            if !alone.output().await.context("start cargo test")?.status.success() {
                return Ok(Fate::Caught(test));
            }
            ensure!(unsteady.len() < MAX_UNSTEADY, "{unsteady:?} fail only beside others");
            unsteady.push(test);
        }
    }
    Ok(Fate::Survived)
}

/// Runs the tests of a package but for some, up to the first that fails.
async fn first_failure(
    tree: &Path,
    server: &PrivatePostgres,
    package: &str,
    but: &[String],
) -> anyhow::Result<Option<String>> {
    let mut test = cargo(tree, server);
    test.args(["test", "--package", package, "--no-fail-fast", "--"]);
    test.args(but.iter().flat_map(|test| ["--skip", test])).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = test.spawn().context("start cargo test")?;
    let output = child.stdout.take().context("read the output of the tests")?;
    let failed = timeout(BOUND, failure(output)).await.context("wait for the tests")??;
    if failed.is_some() {
        run::stop(&mut child).await?;
    } else {
        ensure!(child.wait().await.context("wait for cargo test")?.success(), "cargo test failed, and no test did");
    }
    Ok(failed)
}

/// The first test that fails.
async fn failure(output: impl tokio::io::AsyncRead + Unpin) -> anyhow::Result<Option<String>> {
    let mut lines = BufReader::new(output).lines();
    while let Some(line) = lines.next_line().await.context("read the output of the tests")? {
        if let Some(test) = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED")) {
            return Ok(Some(test.to_owned()));
        }
    }
    Ok(None)
}

fn cargo(tree: &Path, server: &PrivatePostgres) -> Command {
    let mut cargo = run::cargo();
    cargo.current_dir(tree).kill_on_drop(true).stdin(Stdio::null());
    // Checked against the schema, as these queries are not described.
    cargo.env("DATABASE_URL", server.url("postgres")).env("SQLX_OFFLINE", "false");
    cargo.env("CARGO_TARGET_DIR", workspace::target());
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predicates_are_found_after_their_words_and_nowhere_else() {
        let text = "// where token = $1\n  set token = $2\n  where l.token = i.token and l.session_no = $3 and not s.dead\n  on epoch = $1)";
        let found: Vec<(usize, String)> =
            predicates("f.rs", text).into_iter().map(|mutant| (mutant.line, mutant.predicate)).collect();
        let expected = [(3, "l.token = i.token"), (3, "l.session_no = $3"), (3, "not s.dead"), (4, "epoch = $1")];
        assert_eq!(found, expected.map(|(line, predicate)| (line, predicate.to_owned())));
    }

    #[test]
    fn a_mutant_differs_in_one_predicate() {
        let text = "a\n  where token = $1 and epoch = $2\"";
        let mutants = predicates("f.rs", text);
        assert_eq!(mutants[0].applied(text), "a\n  where (token = $1 or true) and epoch = $2\"");
        assert_eq!(mutants[1].applied(text), "a\n  where token = $1 and (epoch = $2 or true)\"");
    }
}
