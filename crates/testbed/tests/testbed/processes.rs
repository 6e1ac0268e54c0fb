//! Processes are controlled by id, and none is left.

use std::process::Command;
use std::time::Duration;

use testbed::{Processes, eventually, free_address, listening};

const SOON: Duration = Duration::from_secs(10);

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[tokio::test]
async fn descendants_in_groups_of_their_own_are_killed_too() {
    let processes = Processes::new();
    let mut parent = processes.spawn("parent", shell("setsid sleep 600 & echo started; wait"));
    parent.logged("started", SOON).await;
    eventually(SOON, "parent and child live", async || processes.living().len() == 2).await;
    parent.kill();
    let left = processes.living();
    assert_eq!(left.len(), 1, "the child outlives its parent");
    drop(processes);
    let gone = || !std::path::Path::new(&format!("/proc/{}", left[0])).exists() || state(left[0]) == Some('Z');
    eventually(SOON, "the child is killed", async || gone()).await;
}

fn state(id: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

#[tokio::test]
async fn frozen_process_goes_on_after_a_thaw_and_ends_when_told_to() {
    let processes = Processes::new();
    let mut process =
        processes.spawn("loop", shell("trap 'echo told; exit 7' TERM; echo ready; while :; do sleep 0.01; done"));
    process.logged("ready", SOON).await;
    process.freeze();
    eventually(SOON, "it is stopped", async || state(process.id()) == Some('T')).await;
    process.terminate();
    assert!(process.is_running());
    process.thaw();
    assert_eq!(process.exit(SOON).await.code(), Some(7));
    process.logged("told", SOON).await;
}

#[tokio::test]
async fn addresses_are_given_once_and_are_free() {
    let (first, second) = (free_address(), free_address());
    assert_ne!(first, second);
    let server = tokio::net::TcpListener::bind(first).await.expect("free");
    listening(first, SOON).await;
    drop(server);
}
