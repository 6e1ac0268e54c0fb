//! The stock worker as a process that is killed: its commands end with it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpgid, kill_process, test_kill_process};
use tokio::process::Child;

use crate::fake::{Fake, Session, grant, patiently};
use crate::stock::{gone, is_zombie, outcome, pid, signal, start, succeeded, written_pid};

/// A worker with a command that ignores SIGTERM, as its child does, and that has started: both of them.
async fn stubborn(dir: &Path) -> (Child, [Pid; 2], (Session, Fake)) {
    let dir = dir.display();
    let loops = "while :; do sleep 0.1; done";
    let script =
        format!(r#"trap "" TERM INT HUP; sh -c "echo \$\$ > {dir}/child; {loops}" & echo $$ > {dir}/leader; {loops}"#);
    let (worker, session, fake) = start(&["--exec", &format!("stubborn=sh -c '{script}'")]).await;
    session.grant([grant(1, "stubborn")]).await;
    let processes =
        [written_pid(Path::new(&format!("{dir}/leader"))).await, written_pid(Path::new(&format!("{dir}/child"))).await];
    (worker, processes, (session, fake))
}

async fn kill(mut worker: Child) {
    worker.start_kill().unwrap();
    patiently("the end of the worker", worker.wait()).await.unwrap();
}

/// The guard of this worker, once there is one other than `old`.
async fn guard_of(worker: &Child, old: Option<Pid>) -> Pid {
    let parent = pid(worker).as_raw_pid();
    let search = async {
        loop {
            let found = children(parent).find(|child| is_guard(*child) && Some(*child) != old && !is_zombie(*child));
            if let Some(guard) = found {
                return guard;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    patiently("a guard", search).await
}

fn children(parent: i32) -> impl Iterator<Item = Pid> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_child = move |id: &i32| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        after_name.split_whitespace().nth(1) == Some(&parent.to_string())
    };
    processes.filter(is_child).filter_map(Pid::from_raw)
}

fn is_guard(process: Pid) -> bool {
    let line = fs::read_to_string(format!("/proc/{}/cmdline", process.as_raw_pid())).unwrap_or_default();
    line.split('\0').nth(1) == Some("guard")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_and_what_it_started_end_with_a_worker_that_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let (worker, processes, _played) = stubborn(dir.path()).await;
    kill(worker).await;
    for process in processes {
        gone(process).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guard_outlives_the_signals_that_stop_a_worker_and_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (worker, processes, _played) = stubborn(dir.path()).await;
    let guard = guard_of(&worker, None).await;
    let group = getpgid(Some(guard)).unwrap();
    assert_eq!(group, guard, "a signal to the worker's group does not reach it");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        kill_process(guard, signal).unwrap();
    }
    kill(worker).await;
    for process in processes.into_iter().chain([guard]) {
        gone(process).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_is_killed_is_replaced_by_one_that_knows_what_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (worker, processes, _played) = stubborn(dir.path()).await;
    let first = guard_of(&worker, None).await;
    kill_process(first, Signal::KILL).unwrap();
    guard_of(&worker, Some(first)).await;
    kill(worker).await;
    for process in processes {
        gone(process).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guard_leaves_alone_what_has_ended_and_ends_with_a_worker_that_stops() {
    let dir = tempfile::tempdir().unwrap();
    // What leaves the group is not the command's any more, and shows whom the guard kills.
    let script = format!("setsid sh -c \"echo \\$\\$ > {0}/left; exec sleep 60\" & echo done", dir.path().display());
    let (mut worker, mut session, _fake) = start(&["--exec", &format!("leaves=sh -c '{script}'")]).await;
    let guard = guard_of(&worker, None).await;
    assert_eq!(succeeded(outcome(&mut session, grant(1, "leaves")).await).result.as_deref(), Some(&b"done\n"[..]));
    let left = written_pid(&dir.path().join("left")).await;
    signal(&worker, Signal::TERM);
    session.bye().await;
    session.close();
    assert_eq!(patiently("the end", worker.wait()).await.unwrap().code(), Some(0));
    gone(guard).await;
    assert!(test_kill_process(left).is_ok() && !is_zombie(left));
    kill_process(left, Signal::KILL).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_without_commands_has_no_guard() {
    let (worker, _session, _fake) = start(&["--http", "a=http://127.0.0.1:9/"]).await;
    assert_eq!(children(pid(&worker).as_raw_pid()).next(), None);
    kill(worker).await;
}
