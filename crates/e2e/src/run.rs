//! The whole of `e2e`.

use std::{
    any::Any,
    fs,
    io::Write as _,
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use futures::{FutureExt as _, StreamExt as _, stream};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, timeout},
};

use crate::{
    Args,
    checker::{End, State, check},
    history,
    report::{Figures, Row, table},
    rest,
    scenarios::{ALL, Scenario},
    world::World,
};

/// Longer than any scenario takes, with the wait for its end.
const SCENARIO_BOUND: Duration = Duration::from_mins(4);

/// Violations of one scenario that are shown.
const SHOWN: usize = 10;

/// Lists scenarios, or runs those that are asked for. An error if one of them failed.
pub async fn run(args: Args) -> anyhow::Result<()> {
    if args.list {
        for Scenario { name, cases, about, .. } in ALL {
            say(&format!("{name:<26} {:<15} {about}", cases.join(" ")))?;
        }
        return Ok(());
    }
    let chosen = choose(&args.scenarios)?;
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    // What is dropped half-way ends its processes.
    tokio::select! {
        ran = run_all(&args, &chosen) => ran,
        _ = int.recv() => bail!("interrupted"),
        _ = term.recv() => bail!("interrupted"),
    }
}

/// Writes to the standard output, which somebody may have closed.
fn say(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "{text}").context("write to the standard output")
}

fn choose(names: &[String]) -> anyhow::Result<Vec<Scenario>> {
    let is = |scenario: &Scenario, name: &str| scenario.name == name || scenario.cases.contains(&name);
    if let Some(unknown) = names.iter().find(|name| !ALL.iter().any(|scenario| is(scenario, name))) {
        bail!("there is no scenario {unknown:?}; --list names them");
    }
    let wanted = |scenario: &Scenario| names.is_empty() || names.iter().any(|name| is(scenario, name));
    let (able, lacking): (Vec<_>, Vec<_>) =
        ALL.into_iter().filter(wanted).partition(|scenario| (scenario.lacks)().is_none());
    for scenario in &lacking {
        let why = (scenario.lacks)().unwrap_or_default();
        ensure!(names.is_empty(), "{} cannot be tried: {why}", scenario.name);
        eprintln!("{}: left out, because {why}", scenario.name);
    }
    Ok(able)
}

async fn run_all(args: &Args, chosen: &[Scenario]) -> anyhow::Result<()> {
    let began = Instant::now();
    let is_over = || args.time.is_some_and(|time| began.elapsed() >= time);
    let first_seed = args.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let mut rows: Vec<Row> = Vec::new();
    for round in 0.. {
        let seed = first_seed + round;
        let runs = chosen
            .iter()
            .map(|scenario| async move { if is_over() { None } else { Some(one(args, scenario, seed).await) } });
        let runs = stream::iter(runs).buffer_unordered(args.at_once.into()).filter_map(async |row| row);
        rows.extend(runs.collect::<Vec<_>>().await);
        if args.time.is_none() || is_over() {
            break;
        }
    }
    let place = |row: &Row| (row.seed, ALL.iter().position(|scenario| scenario.name == row.name));
    rows.sort_by_key(place);
    say(&format!("\n{}", table(&rows)))?;
    let failed = rows.iter().filter(|row| row.figures.is_none()).count();
    if failed > 0 {
        bail!("{failed} of {} runs failed; their logs and histories are in {}", rows.len(), args.folder.display());
    }
    Ok(())
}

/// One run of a scenario, told to people.
async fn one(args: &Args, scenario: &Scenario, seed: u64) -> Row {
    eprintln!("{}: {} (seed {seed})", scenario.name, scenario.about);
    let started = Instant::now();
    let ran = attempt(args, scenario, seed).await;
    let took = started.elapsed();
    match &ran {
        Ok(_) => eprintln!("{}: passed after {} s", scenario.name, took.as_secs()),
        Err(error) => {
            eprintln!("{}: FAILED after {} s: {error:#}", scenario.name, took.as_secs());
            eprintln!("again with: cargo xtask e2e --scenario {} --seed {seed}", scenario.name);
        }
    }
    Row { name: scenario.name, seed, took, figures: ran.ok() }
}

/// One run of a scenario, in a folder of its own.
async fn attempt(args: &Args, scenario: &Scenario, seed: u64) -> anyhow::Result<Figures> {
    let folder = folder(&args.folder, scenario, seed)?;
    let mut world = World::create(seed, &folder, scenario.settings, scenario.disk).await.context("set up")?;
    // What tests stand on panics where it waits in vain: that ends this scenario and no other.
    let played = AssertUnwindSafe(play(scenario, &mut world)).catch_unwind();
    let ran = timeout(SCENARIO_BOUND, async { played.await.unwrap_or_else(|panic| bail!("{}", said(&*panic))) }).await;
    let ran = ran.unwrap_or_else(|_| bail!("it was not over after {SCENARIO_BOUND:?}"));
    if args.keep || ran.is_err() {
        world.keep_logs(&folder)?;
    }
    // It waits for its processes.
    tokio::task::block_in_place(|| drop(world));
    if ran.is_ok() && !args.keep {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    ran
}

/// What a panic said.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panicked")
}

fn folder(parent: &Path, scenario: &Scenario, seed: u64) -> anyhow::Result<PathBuf> {
    let folder = parent.join(format!("{}-{seed}", scenario.name));
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(folder)
}

/// Plays a scenario to its end and judges it.
async fn play(scenario: &Scenario, world: &mut World) -> anyhow::Result<Figures> {
    let played = (scenario.run)(world).await;
    let rested = match played {
        Ok(()) => world.rest(scenario.rest).await,
        Err(error) => Err(error),
    };
    let history = history::load(world.history())?;
    let state = State::read(&mut world.connect().await?).await.context("read the end")?;
    // What went wrong on the way may be explained by what is wrong in the end.
    let end = if rested.is_ok() { End::AtRest } else { End::Running };
    let violations = check(&history, &state, end);
    if violations.is_empty() {
        rested?;
        rest::check(world).await?;
        return Ok(Figures::of(&history, &state));
    }
    let shown: Vec<String> = violations.iter().take(SHOWN).map(ToString::to_string).collect();
    let job = violations.iter().find_map(|violation| violation.job);
    let about = job.map(|job| format!("\nall about job {job}:\n{}", history.about(job))).unwrap_or_default();
    bail!(
        "{} violations:\n  {}{about}{}",
        violations.len(),
        shown.join("\n  "),
        rested.err().map(|error| format!("{error:#}")).unwrap_or_default()
    )
}
