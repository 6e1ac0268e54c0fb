//! The examples, against the programs.

use std::process::Command;

use testbed::{PATIENCE, Processes, db_test, free_address, listening};

use crate::programs::program;
use crate::tools::{output, root};

fn examples() -> Command {
    Command::new(root().join("examples/test"))
}

#[tokio::test]
async fn jobs_are_enqueued_from_a_shell_and_from_python() {
    program("scheduler").expect("the programs are built");
    output(examples().arg("--install")).expect("the tools of the examples are installed");
    db_test(async |db| {
        let processes = Processes::new();
        let (address, url) = (free_address().to_string(), db.url());
        let environment = [("FENCEPOST_DATABASE_URL", url.as_str())];
        let _scheduler = processes.start("scheduler", &["serve", "--listen", &address], &environment);
        let scheduler = format!("http://{address}");
        let _worker = processes.start("worker", &["--scheduler", &scheduler, "--exec", "echo=cat"], &[]);
        listening(address.parse().expect("an address"), PATIENCE).await;

        let outcome = tokio::task::spawn_blocking(move || output(examples().arg(address))).await;
        outcome.expect("no panic").expect("the examples work");
    })
    .await;
}
