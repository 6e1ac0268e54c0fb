//! `worker guard`: the process that ends the commands of a worker that was killed.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::signal::unix::{SignalKind, signal};

/// The first argument of this process; the groups that run already follow it.
pub const SUBCOMMAND: &str = "guard";
/// What it writes once signals no longer end it.
pub const READY: u8 = b'\n';

/// Runs until standard input ends, as it does however the worker ends; then kills the process groups it was told of.
///
/// A line is `+` and the number of a group that began, or `-` and that of one that is over.
pub fn run(groups: impl Iterator<Item = String>) -> ExitCode {
    match guard(groups) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Whatever reads the worker's log reads this; there is no telemetry here.
            eprintln!("worker guard: {error}");
            ExitCode::FAILURE
        }
    }
}

fn guard(groups: impl Iterator<Item = String>) -> io::Result<()> {
    // Never run, only kept: the handlers that it installs are there in place of the ends that these signals mean.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _entered = runtime.enter();
    let _ignored = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
    let mut stdout = io::stdout();
    // Fails if the worker is gone already; then there is the more to do.
    let _ = stdout.write_all(&[READY]).and_then(|()| stdout.flush());
    let mut running: BTreeSet<String> = groups.collect();
    // A broken pipe ends it like one that was closed: the groups are killed rather than forgotten.
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        follow(&mut running, &line);
    }
    running.iter().filter_map(|group| group_id(group)).for_each(kill);
    Ok(())
}

fn follow(running: &mut BTreeSet<String>, line: &str) {
    if let Some(group) = line.strip_prefix('+') {
        running.insert(group.to_owned());
    } else if let Some(group) = line.strip_prefix('-') {
        running.remove(group);
    }
}

/// None for 0 and 1, which would mean our own group and that of the first process.
fn group_id(text: &str) -> Option<Pid> {
    text.parse().ok().filter(|&id: &i32| id > 1).and_then(Pid::from_raw)
}

fn kill(group: Pid) {
    // Fails if nothing is left of it.
    let _ = kill_process_group(group, Signal::KILL);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_is_forgotten_and_what_makes_no_sense_ignored() {
        let mut running = BTreeSet::from(["7".to_owned()]);
        for line in ["+8", "+9", "-8", "-7", "", "x", "-11"] {
            follow(&mut running, line);
        }
        assert_eq!(running, BTreeSet::from(["9".to_owned()]));
        assert_eq!(["9", "1", "0", "-5", "x"].map(|text| group_id(text).is_some()), [true, false, false, false, false]);
    }
}
