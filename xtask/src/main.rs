//! Tasks of the repository: `cargo xtask --help` lists them.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod database;
mod demo;
mod e2e;
mod hex;
mod interrupt;
mod lint;
mod mutate;
mod pg;
mod pinned;
mod postgres;
mod psql;
mod query_data;
mod run;
mod service;
mod stack;
mod test;
mod tidy;
mod up;
mod workspace;

use interrupt::Interrupt;

/// Tasks of the repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Runs real files through the whole system, kills a worker half-way, and checks every result.
    Demo(demo::Args),
    /// Measures the whole system on this machine, each figure beside its floor.
    Bench(bench::Args),
    /// Injects faults into the whole system and judges the history of what happened.
    E2e(e2e::Args),
    /// Starts the whole system and keeps it running until Ctrl-C.
    Up(stack::StackArgs),
    /// Starts a private PostgreSQL, prints its URL, and runs until Ctrl-C or until a given command ends.
    #[command(hide = true)]
    Pg(pg::Args),
    /// Renews the committed descriptions of the checked queries against a freshly migrated database.
    Sqlx(query_data::Args),
    /// Runs all tests on a private PostgreSQL.
    Test(test::Args),
    /// Takes the predicates that fence writes away, one at a time, and sees whether a test notices.
    Mutate(mutate::Args),
    /// Checks formatting, lints, documentation, the repository's rules, query descriptions and licences.
    Lint,
    /// Checks the rules of the repository that prose cannot hold.
    Tidy,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match perform(cli.task) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn perform(task: Task) -> anyhow::Result<ExitCode> {
    // Before anything is started: from here on a signal ends the task in order instead of the process at once.
    let mut interrupt = Interrupt::listen()?;
    match task {
        Task::Demo(args) => demo::run(&args, &mut interrupt).await,
        Task::Bench(args) => bench::run(&args, &mut interrupt).await,
        Task::E2e(args) => e2e::run(&args, &mut interrupt).await,
        Task::Up(args) => up::run(&args, &mut interrupt).await,
        Task::Pg(args) => pg::run(args, &mut interrupt).await,
        Task::Sqlx(args) => query_data::run(&args, &mut interrupt).await,
        Task::Test(args) => test::run(&args, &mut interrupt).await,
        Task::Mutate(args) => mutate::run(&args, &mut interrupt).await,
        Task::Lint => lint::run(&mut interrupt).await,
        Task::Tidy => tidy::run(&mut interrupt).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_task_has_a_command_line_that_clap_accepts() {
        Cli::command().debug_assert();
    }
}
