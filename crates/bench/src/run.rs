//! The whole of `bench`.

use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};

use crate::{
    Args,
    report::{self, Figure, OTHERS_CPU},
    rig::Rig,
    scenario::{Group, Scenario},
    scenarios::ALL,
    usage::Machine,
};

/// Runs of each scenario: the median of three is not moved by one that was disturbed.
const RUNS: u32 = 3;

/// Lists scenarios, or measures those that are asked for. An error if one is broken, never because of a figure.
pub async fn run(args: Args) -> anyhow::Result<()> {
    if args.list {
        return say(&listed());
    }
    let chosen = choose(&args.scenarios, args.quick)?;
    args.json.as_deref().map_or(Ok(()), can_write)?;
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    // What is dropped half-way kills its processes.
    tokio::select! {
        measured = measure(&args, &chosen) => measured,
        _ = int.recv() => bail!("interrupted"),
        _ = term.recv() => bail!("interrupted"),
    }
}

/// A line for each scenario.
fn listed() -> String {
    let line = |scenario: &Scenario| format!("{:<16} {:<5} {}", scenario.name, scenario.group.name(), scenario.about);
    ALL.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Those that are named, by themselves or as a group; without names all, or the main ones of a quick bench.
fn choose(names: &[String], quick: bool) -> anyhow::Result<Vec<&'static Scenario>> {
    let is = |scenario: &Scenario, name: &str| scenario.name == name || scenario.group.name() == name;
    if let Some(unknown) = names.iter().find(|name| !ALL.iter().any(|scenario| is(scenario, name))) {
        bail!("there is no scenario {unknown:?}; --list names them");
    }
    let wanted = |scenario: &&Scenario| match names {
        [] => !quick || scenario.group == Group::Main,
        names => names.iter().any(|name| is(scenario, name)),
    };
    Ok(ALL.iter().filter(wanted).collect())
}

async fn measure(args: &Args, chosen: &[&'static Scenario]) -> anyhow::Result<()> {
    let rig = Rig::set_up(&args.server, args.quick).await.context("set up")?;
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let version = rig.admin.row("show server_version").await?.concat();
    say(&format!("{cores} cores; PostgreSQL {version}, {}, {}", durability(&rig).await?, args.server.settings))?;
    let runs = args.runs.unwrap_or(if args.quick { 1 } else { RUNS });
    let mut figures = Vec::new();
    for &scenario in chosen {
        let scaled = if args.quick { ", scaled down" } else { "" };
        eprintln!("{}: {}{scaled}", scenario.name, scenario.about);
        let figure = repeat(&rig, scenario, runs).await.with_context(|| format!("{} is broken", scenario.name))?;
        say(&format!("{}: {}", scenario.name, figure.line()))?;
        figures.push(figure);
        if let Some(file) = &args.json {
            // After each, so that what was measured is there whatever follows.
            write_json(file, &figures, args.quick)?;
        }
    }
    say(&format!("\n{}", report::table(&figures)))
}

/// Writes to the standard output, which somebody may have closed.
fn say(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "{text}").context("write to the standard output")
}

/// What makes a commit last, as a connection of the bench has it; an error if that is not all of it.
async fn durability(rig: &Rig) -> anyhow::Result<String> {
    const NAMES: [&str; 3] = ["fsync", "synchronous_commit", "full_page_writes"];
    let shown =
        rig.admin.row(&format!("select {}", NAMES.map(|name| format!("current_setting('{name}')")).join(", "))).await?;
    ensure!(shown == ["on"; 3], "{NAMES:?} are {shown:?}: figures of such a server would say nothing");
    Ok(format!("{} on", NAMES.join(", ")))
}

async fn repeat(rig: &Rig, scenario: &'static Scenario, runs: u32) -> anyhow::Result<Figure> {
    let mut samples = Vec::new();
    for run in 1..=runs {
        let began = Instant::now();
        let before = Machine::look(rig.postmaster);
        let mut sample = (scenario.run)(rig).await.map_err(|error| rig.explain(error))?;
        let others = Machine::look(rig.postmaster).others_since(before) / began.elapsed().as_secs_f64();
        sample.counters.set(OTHERS_CPU, others * 100.0);
        let seconds = began.elapsed().as_secs();
        eprintln!(
            "{}: run {run} of {runs}, {seconds} s: {} {}",
            scenario.name,
            report::shown(sample.value),
            scenario.unit
        );
        ensure!(sample.value.is_finite(), "the figure is {}", sample.value);
        samples.push(sample);
    }
    Ok(Figure::of(scenario, &samples))
}

/// An error if the file could not be written in the end: known before anything is measured.
fn can_write(file: &Path) -> anyhow::Result<()> {
    let opened = File::options().create(true).append(true).open(file);
    opened.map(drop).with_context(|| format!("write {}", file.display()))
}

fn write_json(file: &Path, figures: &[Figure], quick: bool) -> anyhow::Result<()> {
    let all: Value = figures.iter().map(|figure| figure.to_json(quick)).collect();
    fs::write(file, format!("{all:#}\n")).with_context(|| format!("write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_no_group() {
        let names: BTreeSet<&str> = ALL.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), ALL.len());
        assert!([Group::Main, Group::Flat].iter().all(|group| !names.contains(group.name())));
    }

    #[test]
    fn scenarios_are_chosen_by_name_and_by_group() -> anyhow::Result<()> {
        let names = |chosen: Vec<&'static Scenario>| chosen.iter().map(|scenario| scenario.name).collect::<Vec<_>>();
        assert_eq!(names(choose(&["drain".to_owned()], false)?), ["drain"]);
        assert_eq!(choose(&[], false)?.len(), ALL.len());
        assert!(choose(&[], true)?.iter().all(|scenario| scenario.group == Group::Main));
        assert!(choose(&["nothing".to_owned()], true).is_err());
        Ok(())
    }
}
