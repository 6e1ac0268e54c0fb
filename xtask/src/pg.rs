//! `cargo xtask pg`: a database to develop against.

use std::{ffi::OsString, process::ExitCode};

use anyhow::Context as _;
use private_postgres::{Options, PrivatePostgres};
use tokio::process::Command;

use crate::{interrupt::Interrupt, postgres, run};

/// What `cargo xtask pg` is told.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Makes commits wait for the disk.
    #[arg(long)]
    fsync: bool,
    /// A server setting, such as `log_statement=all`.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
    /// The command to run, with `DATABASE_URL` set for it.
    #[arg(last = true)]
    command: Vec<OsString>,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Runs the task; its exit code is the command's.
pub async fn run(args: Args, interrupt: &mut Interrupt) -> anyhow::Result<ExitCode> {
    let options = Options { fsync: args.fsync, settings: args.settings, ..Options::default() };
    let server = postgres::start(options).await?;
    let code = attend(&server, &args.command, interrupt).await;
    postgres::stop(server).await?;
    code
}

async fn attend(server: &PrivatePostgres, command: &[OsString], interrupt: &mut Interrupt) -> anyhow::Result<ExitCode> {
    let url = server.url("postgres");
    let Some((program, arguments)) = command.split_first() else {
        println!("{url}");
        interrupt.wait().await;
        return Ok(ExitCode::SUCCESS);
    };
    let mut command = Command::new(program);
    private_postgres::forget_client_settings(command.as_std_mut());
    command.args(arguments).env("DATABASE_URL", url);
    let status = run::status(command, interrupt).await?;
    exit_code(status.code()).context("the command was ended by a signal")
}

/// Hands an exit status on.
pub fn exit_code(code: Option<i32>) -> Option<ExitCode> {
    code.and_then(|code| u8::try_from(code).ok()).map(ExitCode::from)
}
