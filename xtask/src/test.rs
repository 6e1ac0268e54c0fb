//! `cargo xtask test`: all tests, on a private PostgreSQL.

use std::{
    ffi::{OsStr, OsString},
    process::{ExitCode, Stdio},
};

use anyhow::{Context as _, bail};
use private_postgres::{Options, PrivatePostgres};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Child,
};

use crate::{interrupt::Interrupt, pg, postgres, run};

/// Connections for all test processes together.
pub const MAX_CONNECTIONS: u32 = 400;

/// What `cargo xtask test` is told.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Handed to `cargo test`; without `--package` all packages are tested.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Builds what the tests start, runs them, and sums up what they printed. The exit code is theirs.
pub async fn run(args: &Args, interrupt: &mut Interrupt) -> anyhow::Result<ExitCode> {
    // Tests start the real programs, which cargo builds by itself only for the tests of the same package.
    let mut build = run::cargo();
    build.args(["build", "--workspace", "--bins", "--examples"]);
    run::success(build, interrupt).await?;
    let options =
        Options { settings: vec![("max_connections".into(), MAX_CONNECTIONS.to_string())], ..Options::default() };
    let server = postgres::start(options).await?;
    let code = test(&server, &args.arguments, interrupt).await;
    postgres::stop(server).await?;
    code
}

async fn test(server: &PrivatePostgres, arguments: &[OsString], interrupt: &mut Interrupt) -> anyhow::Result<ExitCode> {
    let mut cargo = run::cargo();
    cargo.arg("test");
    if !names_packages(arguments) {
        cargo.arg("--workspace");
    }
    cargo.args(arguments).env("DATABASE_URL", server.url("postgres")).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = cargo.kill_on_drop(true).spawn().context("start cargo test")?;
    let mut tally = Tally::default();
    tokio::select! {
        read = echo(&mut child, &mut tally) => read?,
        () = interrupt.wait() => {
            run::stop(&mut child).await?;
            bail!("interrupted")
        }
    }
    let status = child.wait().await.context("wait for cargo test")?;
    println!("{}", tally.line());
    pg::exit_code(status.code()).context("the tests were ended by a signal")
}

/// Whether the user chose packages: everything before `--` is cargo's.
fn names_packages(arguments: &[OsString]) -> bool {
    let mut own = arguments.iter().take_while(|argument| *argument != OsStr::new("--"));
    own.any(|argument| {
        let argument = argument.as_encoded_bytes();
        argument.starts_with(b"-p") || argument.starts_with(b"--package") || argument == b"--workspace"
    })
}

/// Passes the child's output on and counts its closing lines.
async fn echo(child: &mut Child, tally: &mut Tally) -> anyhow::Result<()> {
    let output = child.stdout.take().context("read the output of the tests")?;
    let mut lines = BufReader::new(output).split(b'\n');
    while let Some(line) = lines.next_segment().await.context("read the output of the tests")? {
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        tally.add(&line);
    }
    Ok(())
}

/// The sum over all test programs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    programs: u64,
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Tally {
    /// Counts a line such as `test result: ok. 8 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s`.
    fn add(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else {
            return;
        };
        let words: Vec<&str> = result.split([' ', ';', '.']).filter(|word| !word.is_empty()).collect();
        let before = |name| {
            let number = words.windows(2).find(|pair| pair[1] == name).map(|pair| pair[0].parse());
            number.and_then(Result::ok).unwrap_or(0_u64)
        };
        self.programs += 1;
        self.passed += before("passed");
        self.failed += before("failed");
        self.ignored += before("ignored");
    }

    fn line(&self) -> String {
        let Self { programs, passed, failed, ignored } = self;
        format!("all tests: {passed} passed; {failed} failed; {ignored} ignored; in {programs} programs")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_summed_and_others_are_not() {
        let mut tally = Tally::default();
        tally.add("test result: ok. 8 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s");
        tally.add("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s");
        tally.add("test pool::a_panic_is_caught ... ok");
        assert_eq!(tally, Tally { programs: 2, passed: 11, failed: 2, ignored: 1 });
    }

    #[test]
    fn a_package_is_chosen_by_cargos_options_only() {
        let given = |arguments: &[&str]| names_packages(&arguments.iter().map(OsString::from).collect::<Vec<_>>());
        assert!(given(&["-p", "worker"]) && given(&["--package=worker"]) && given(&["-pworker"]));
        assert!(!given(&["drain", "--", "-p"]) && !given(&[]));
    }
}
