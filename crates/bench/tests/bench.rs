//! The command line, as a user meets it.

use std::process::{Command, Output};

fn bench(args: &[&str]) -> std::io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_bench")).args(args).env_remove("FENCEPOST_BENCH_DATABASE_URL").output()
}

#[test]
fn list_names_every_scenario_of_the_table() -> std::io::Result<()> {
    let output = bench(&["--list"])?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(output.status.success());
    for name in [
        "drain",
        "steady",
        "bulk",
        "unary",
        "latency-idle",
        "latency-half",
        "heartbeats",
        "idle",
        "sessions",
        "backlog",
        "flat-ready",
        "flat-finished",
        "flat-scheduled",
        "flat-dead",
        "flat-unknown",
        "flat-keys",
        "flat-snapshot",
        "two-schedulers",
    ] {
        assert!(names.contains(&name), "{name} is not in\n{text}");
    }
    Ok(())
}

#[test]
fn what_cannot_be_measured_is_an_error_and_not_an_empty_table() -> std::io::Result<()> {
    for (args, hint) in
        [(&["--scenario", "nothing"][..], "there is no scenario \"nothing\""), (&["--quick"], "cargo xtask bench")]
    {
        let output = bench(args)?;
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && message.contains(hint), "{message}");
    }
    Ok(())
}
