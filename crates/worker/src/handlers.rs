//! The handlers that the flags describe.

use std::collections::BTreeSet;

use anyhow::{Context, anyhow, ensure};
use lifecycle::check_all;
use queue_core::{KindName, MAX_SESSION_KINDS};
use reqwest::Url;

use crate::command::Command;

/// Commands and URLs by the kind of the jobs that they run; no kind is there twice.
#[derive(Debug)]
pub struct Handlers {
    pub commands: Vec<(KindName, Command)>,
    pub urls: Vec<(KindName, Url)>,
}

impl Handlers {
    /// Takes the values of `--exec` and `--http` apart. Empty ones are none, such as the end of a list with one a line.
    ///
    /// Errors name the flag, and never repeat a URL, which may hold credentials.
    pub fn parse(exec: &[String], http: &[String]) -> anyhow::Result<Self> {
        let (commands, wrong_commands) = each("--exec", "KIND=COMMAND", exec, |command| {
            let command = Command::parse(command)?;
            command.check().map(|()| command)
        });
        let (urls, wrong_urls) = each("--http", "KIND=URL", http, url);
        check_all(wrong_commands.into_iter().chain(wrong_urls).map(Err))?;
        let handlers = Self { commands, urls };
        handlers.check()?;
        Ok(handlers)
    }

    /// The kinds, those of commands first.
    pub fn kinds(&self) -> impl Iterator<Item = &KindName> {
        self.commands.iter().map(|(kind, _)| kind).chain(self.urls.iter().map(|(kind, _)| kind))
    }

    fn check(&self) -> anyhow::Result<()> {
        let mut kinds = BTreeSet::new();
        for kind in self.kinds() {
            ensure!(kinds.insert(kind), "--exec, --http: there are two handlers for {kind}");
        }
        ensure!(!kinds.is_empty(), "give at least one handler: --exec KIND=COMMAND or --http KIND=URL");
        let count = kinds.len();
        ensure!(count <= MAX_SESSION_KINDS, "--exec, --http: {count} kinds are more than {MAX_SESSION_KINDS}");
        Ok(())
    }
}

type Parsed<T> = (Vec<(KindName, T)>, Vec<anyhow::Error>);

/// The handlers of the values that make sense, and what is wrong with the others.
fn each<T>(flag: &str, form: &str, values: &[String], parse: impl Fn(&str) -> Result<T, String>) -> Parsed<T> {
    let one = |value: &str| {
        let (kind, rest) = value.split_once('=').with_context(|| format!("{flag}: must be {form}"))?;
        let kind = KindName::new(kind.trim()).map_err(|invalid| anyhow!("{flag}: the kind {}", invalid.problem))?;
        let parsed = parse(rest.trim()).map_err(|problem| anyhow!("{flag} {kind}: {problem}"))?;
        Ok((kind, parsed))
    };
    let (mut handlers, mut problems) = (Vec::new(), Vec::new());
    for value in values.iter().map(|value| value.trim()).filter(|value| !value.is_empty()) {
        match one(value) {
            Ok(handler) => handlers.push(handler),
            Err(problem) => problems.push(problem),
        }
    }
    (handlers, problems)
}

fn url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("is not a URL: {error}"))?;
    if matches!(url.scheme(), "http" | "https") {
        Ok(url)
    } else {
        Err("the URL must start with http:// or https://".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(exec: &[&str], http: &[&str]) -> anyhow::Result<Handlers> {
        let owned = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect::<Vec<_>>();
        Handlers::parse(&owned(exec), &owned(http))
    }

    #[test]
    fn commands_and_urls_are_taken_apart_and_empty_lines_left_out() {
        let handlers = parse(&["a=cat -n", "", " b = sh -c 'x=y' "], &["c=http://localhost:1/x?y=z"]).unwrap();
        assert_eq!(handlers.kinds().map(KindName::as_str).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(handlers.commands[1].1.arguments, ["-c", "x=y"]);
        assert_eq!(handlers.urls[0].1.query(), Some("y=z"));
    }

    #[test]
    fn what_is_wrong_is_told_with_the_flag_and_without_credentials() {
        let many: Vec<String> = (0..=MAX_SESSION_KINDS).map(|kind| format!("k{kind}=cat")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for (exec, http, told) in [
            (&["cat"][..], &[][..], "--exec: must be KIND=COMMAND"),
            (&["=cat"], &[], "--exec: the kind is required"),
            (&["a b=cat"], &[], "--exec: the kind has the character ' '"),
            (&["a="], &[], "--exec a: names no command"),
            (&["a=cat 'x"], &[], "--exec a: the command has an open quote"),
            (&["k=/nonexistent/x -v"], &[], "--exec k: cannot run /nonexistent/x: No such file"),
            (&["k=nonexistent-x"], &[], "--exec k: cannot run nonexistent-x: "),
            (&[], &["http://u:planted@h/"], "--http: must be KIND=URL"),
            (&[], &["a b=http://u:planted@h/"], "--http: the kind has the character"),
            (&[], &["a=ftp://u:planted@h/"], "--http a: the URL must start with http"),
            (&[], &["a=//u:planted@h/"], "--http a: is not a URL"),
            (&["a=cat"], &["a=http://h/"], "--exec, --http: there are two handlers for a"),
            (&["a=cat", "a=true"], &[], "--exec, --http: there are two handlers for a"),
            (&["=cat"], &["a=x"], "--exec: the kind is required;\n--http a: is not a URL"),
            (&many, &[], "--exec, --http: 257 kinds are more than 256"),
            (&[""], &[], "give at least one handler: --exec"),
        ] {
            let error = parse(exec, http).unwrap_err().to_string();
            assert!(error.starts_with(told) && !error.contains("planted"), "{told}: {error}");
        }
    }
}
