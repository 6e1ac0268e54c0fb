//! The scenarios, one line each in [`ALL`].

mod clocks;
mod database;
mod fleet;
mod network;
mod processes;
mod streams;

use std::time::Duration;

use futures::future::LocalBoxFuture;
use queue_core::NewJob;
use tokio::task::JoinHandle;

use crate::{
    disk,
    worker::{Manners, Step},
    world::World,
};

/// A fault, and the load that it meets.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    /// What it is called, for ever.
    pub(crate) name: &'static str,
    /// Cases of the catalogue in docs/reliability.md that it tries.
    pub(crate) cases: &'static [&'static str],
    /// What happens, for people.
    pub(crate) about: &'static str,
    /// Makes it happen; in the end every fault is healed.
    pub(crate) run: for<'w> fn(&'w mut World) -> LocalBoxFuture<'w, anyhow::Result<()>>,
    /// After its end everything that was acknowledged must have ended within this.
    pub(crate) rest: Duration,
    /// Settings of the database server.
    pub(crate) settings: &'static [(&'static str, &'static str)],
    /// The size of the database server's own disk, in MiB, if it has one.
    pub(crate) disk: Option<u32>,
    /// Why it cannot be tried here, if so.
    pub(crate) lacks: fn() -> Option<&'static str>,
}

/// What most have in common.
const BASE: Scenario = Scenario {
    name: "",
    cases: &[],
    about: "",
    run: |_| Box::pin(async { Ok(()) }),
    rest: Duration::from_secs(30),
    settings: &[],
    disk: None,
    lacks: || None,
};

/// All of them, in the order in which they run.
pub(crate) const ALL: [Scenario; 34] = [
    Scenario {
        name: "worker-killed",
        cases: &["S001", "S003", "S082"],
        about: "two of four workers are killed amid their jobs, then two more",
        run: |world| Box::pin(processes::workers_killed(world)),
        ..BASE
    },
    Scenario {
        name: "worker-frozen",
        cases: &["S004", "S009", "S049"],
        about: "workers are stopped for longer than their leases live, and go on as zombies",
        run: |world| Box::pin(processes::workers_frozen(world)),
        ..BASE
    },
    Scenario {
        name: "worker-deploys",
        cases: &["S027", "S036", "S037"],
        about: "workers are replaced one by one, whose jobs have a single attempt and whose handlers may be deaf",
        run: |world| Box::pin(processes::workers_replaced(world)),
        ..BASE
    },
    Scenario {
        name: "worker-drain-killed",
        cases: &["S033"],
        about: "workers are told to drain and killed in the middle of it",
        run: |world| Box::pin(processes::drains_killed(world)),
        ..BASE
    },
    Scenario {
        name: "poison",
        cases: &["S076"],
        about: "jobs that end the process of their worker, among others that do not",
        run: |world| Box::pin(processes::poison(world)),
        ..BASE
    },
    Scenario {
        name: "scheduler-killed",
        cases: &["S043"],
        about: "each of two schedulers is killed and started again, in turn",
        run: |world| Box::pin(processes::schedulers_killed(world)),
        ..BASE
    },
    Scenario {
        name: "scheduler-frozen",
        cases: &["S046"],
        about: "each of two schedulers is stopped for longer than leases live, and goes on",
        run: |world| Box::pin(processes::schedulers_frozen(world)),
        ..BASE
    },
    Scenario {
        name: "scheduler-deploys",
        cases: &["S027"],
        about: "schedulers are replaced one by one, gracefully",
        run: |world| Box::pin(processes::schedulers_replaced(world)),
        ..BASE
    },
    Scenario {
        name: "database-restarted",
        cases: &["S015"],
        about: "the database server crashes and is restarted, and is shut down and started again later",
        run: |world| Box::pin(database::restarted(world)),
        ..BASE
    },
    Scenario {
        name: "database-sessions-killed",
        cases: &["S015", "S018"],
        about: "all of the schedulers' sessions are ended by the server, again and again",
        run: |world| Box::pin(database::sessions_killed(world)),
        ..BASE
    },
    Scenario {
        name: "database-locked",
        cases: &["S024"],
        about: "the tables are locked for seconds, one after the other, while jobs settle",
        run: |world| Box::pin(database::locked(world)),
        ..BASE
    },
    Scenario {
        name: "database-cut",
        cases: &["S021"],
        about: "connections to the database are cut at arbitrary bytes",
        run: |world| Box::pin(network::database_cut(world)),
        ..BASE
    },
    Scenario {
        name: "database-slow",
        cases: &["S024"],
        about: "every answer of the database is late by longer than a statement may take",
        run: |world| Box::pin(network::database_slow(world)),
        ..BASE
    },
    Scenario {
        name: "network-silent",
        cases: &["S039", "S042", "S045"],
        about: "nothing gets through between workers and a scheduler: both ways, then one, then the other",
        run: |world| Box::pin(network::silent(world)),
        ..BASE
    },
    Scenario {
        name: "network-cut",
        cases: &["S063"],
        about: "connections of workers and producers are cut at arbitrary bytes",
        run: |world| Box::pin(network::cut(world)),
        ..BASE
    },
    Scenario {
        name: "network-refused",
        cases: &["S021", "S063"],
        about: "connections of all pairs are reset again and again, and refused for a while",
        run: |world| Box::pin(network::refused(world)),
        ..BASE
    },
    Scenario {
        name: "same-keys",
        cases: &["S052", "S063"],
        about: "four producers enqueue the same keys at once, and lose their connections again and again",
        run: |world| Box::pin(network::same_keys(world)),
        ..BASE
    },
    Scenario {
        name: "worker-drain-silenced",
        cases: &["S034"],
        about: "what draining workers say does not get through for a while",
        run: |world| Box::pin(network::drains_silenced(world)),
        ..BASE
    },
    Scenario {
        name: "everything-frozen",
        cases: &["S013"],
        about: "workers, schedulers and reaper are stopped together for longer than leases live, and go on",
        run: |world| Box::pin(processes::everything_frozen(world)),
        ..BASE
    },
    Scenario {
        name: "reaper-frozen",
        cases: &["S006"],
        about: "the reaper is stopped, not killed, and a worker is killed",
        run: |world| Box::pin(processes::reaper_frozen(world)),
        ..BASE
    },
    Scenario {
        name: "single-attempts",
        cases: &["S007"],
        about: "a worker is killed whose jobs may be tried once",
        run: |world| Box::pin(processes::single_attempts(world)),
        ..BASE
    },
    Scenario {
        name: "listeners-killed",
        cases: &["S016", "S094"],
        about: "only those sessions of the schedulers are ended by which they hear of each other's jobs",
        run: |world| Box::pin(database::listeners_killed(world)),
        ..BASE
    },
    Scenario {
        name: "database-read-only",
        cases: &["S015"],
        about: "the database takes no writes for a while, twice",
        run: |world| Box::pin(database::read_only(world)),
        ..BASE
    },
    Scenario {
        name: "database-full-of-sessions",
        cases: &["S022"],
        about: "others have taken all connections of the database",
        run: |world| Box::pin(database::out_of_connections(world)),
        settings: &[("max_connections", "60")],
        ..BASE
    },
    Scenario {
        name: "snapshot-held",
        cases: &["S132"],
        about: "a transaction is held open from the first job to the last",
        run: |world| Box::pin(database::snapshot_held(world)),
        ..BASE
    },
    Scenario {
        name: "failover",
        cases: &["S015"],
        about: "the database server dies under load, and its synchronous standby takes its place",
        run: |world| Box::pin(database::failed_over(world)),
        ..BASE
    },
    Scenario {
        name: "database-disk-full",
        cases: &["S015"],
        about: "the database's disk is full for a while, in which the server may crash",
        run: |world| Box::pin(database::disk_full(world)),
        disk: Some(400),
        lacks: disk::lacks,
        ..BASE
    },
    Scenario {
        name: "large-payloads",
        cases: &["S048", "S099"],
        about: "a thousand jobs of 100 kB, a worker of ten slots, and workers that read nothing",
        run: |world| Box::pin(streams::large_payloads(world)),
        ..BASE
    },
    Scenario {
        name: "clocks-wrong",
        cases: &["S135", "S136"],
        about: "clocks of schedulers and workers are hours apart and jump, and a worker is killed",
        run: |world| Box::pin(clocks::wrong(world)),
        lacks: clocks::lacks,
        ..BASE
    },
    Scenario {
        name: "expiry-edge",
        cases: &["S010"],
        about: "10,000 jobs are settled just before, at and after the expiry of their sessions",
        run: |world| Box::pin(streams::expiry_edge(world)),
        ..BASE
    },
    Scenario {
        name: "grants-lost",
        cases: &["S040", "S042"],
        about: "grants are committed and do not arrive",
        run: |world| Box::pin(streams::grants_lost(world)),
        ..BASE
    },
    Scenario {
        name: "hostile",
        cases: &["S048"],
        about: "workers settle what others hold and break every rule, beside hundreds of stray connections",
        run: |world| Box::pin(streams::hostile(world)),
        ..BASE
    },
    Scenario {
        name: "ten-schedulers",
        cases: &["S103", "S022"],
        about: "ten migrations at once, of which one is killed, and ten schedulers after them",
        run: |world| Box::pin(fleet::ten_schedulers(world)),
        settings: &[("max_connections", "300")],
        ..BASE
    },
    Scenario {
        name: "reconnect-storm",
        cases: &["S133"],
        about: "300 workers come back at once after an outage of all schedulers",
        run: |world| Box::pin(fleet::reconnect_storm(world)),
        ..BASE
    },
];

/// A job that takes so many milliseconds and succeeds.
fn plain(ms: u64) -> Step {
    Step { ms, fails: 0, manners: Manners::Polite }
}

/// A mixture: most are plain and short, some fail at first, some are deaf.
fn mixed(number: u32) -> Step {
    let ms = u64::from(number * 37 % 200);
    match number % 10 {
        0 => Step { ms, fails: 1, manners: Manners::Polite },
        1 => Step { ms: 10 * ms, fails: 0, manners: Manners::Deaf },
        2 => Step { ms: 5 * ms, fails: 0, manners: Manners::Busy },
        _ => Step { ms, fails: 0, manners: Manners::Polite },
    }
}

/// Jobs that come at this rate for this long, whatever happens meanwhile.
fn load(world: &mut World, rate: u32, time: Duration, step: Step) -> anyhow::Result<JoinHandle<anyhow::Result<()>>> {
    let producer = world.producer()?;
    Ok(tokio::spawn(async move { producer.enqueue_paced(rate, time, step).await }))
}

/// Jobs of one run under load.
const JOBS: u32 = 600;

/// A job whose retries come soon.
fn soon(mut job: NewJob) -> NewJob {
    job.retry.backoff_base = Some(Duration::from_millis(200));
    job.retry.max_attempts = Some(10);
    job.retry.max_lease_losses = Some(10);
    job
}

/// How fast they come where they come at a pace.
const RATE: u32 = 60;

/// For how long.
const LOAD: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_names_every_scenario_as_it_is() {
        let text = include_str!("../../../../docs/reliability.md");
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| `") && !line.contains("cargo")).collect();
        let expected =
            ALL.map(|Scenario { name, cases, about, .. }| format!("| `{name}` | {} | {about} |", cases.join(" ")));
        assert_eq!(rows, expected);
    }
}
