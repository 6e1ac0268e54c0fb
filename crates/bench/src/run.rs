//! The whole of `bench`.

use std::{fs, path::Path};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};

use crate::{
    Args,
    report::{self, Figure},
    rig::Rig,
    scenario::{Group, Scenario},
    scenarios::ALL,
};

/// Runs of each scenario: the median of three is not moved by one that was disturbed.
const RUNS: u32 = 3;

/// Lists scenarios, or measures those that are asked for. An error if one is broken, never because of a figure.
pub async fn run(args: Args) -> anyhow::Result<()> {
    if args.list {
        print!("{}", listed());
        return Ok(());
    }
    let chosen = choose(&args.scenarios, args.quick)?;
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
    let line = |scenario: &Scenario| format!("{:<16} {:<5} {}\n", scenario.name, scenario.group.name(), scenario.about);
    ALL.iter().map(line).collect()
}

/// Those that are named, by themselves or as a group; without names all, or the main ones of a quick bench.
fn choose(names: &[String], quick: bool) -> anyhow::Result<Vec<&'static Scenario>> {
    let is = |scenario: &Scenario, name: &str| scenario.name == name || scenario.group.name() == name;
    if let Some(unknown) = names.iter().find(|name| !ALL.iter().any(|scenario| is(scenario, name))) {
        bail!("there is no scenario {unknown}; --list names them");
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
    println!("{cores} cores; PostgreSQL {version}, {}", args.server.settings);
    let runs = args.runs.unwrap_or(if args.quick { 1 } else { RUNS });
    let mut figures = Vec::new();
    for &scenario in chosen {
        eprintln!("{}: {}", scenario.name, scenario.about);
        let figure = repeat(&rig, scenario, runs).await.with_context(|| format!("{} is broken", scenario.name))?;
        println!("{}: {}", scenario.name, figure.line());
        figures.push(figure);
        if let Some(file) = &args.json {
            // After each, so that what was measured is there whatever follows.
            write_json(file, &figures)?;
        }
    }
    println!("\n{}", report::table(&figures));
    Ok(())
}

async fn repeat(rig: &Rig, scenario: &'static Scenario, runs: u32) -> anyhow::Result<Figure> {
    let mut samples = Vec::new();
    for run in 1..=runs {
        let began = Instant::now();
        let sample = (scenario.run)(rig).await?;
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

fn write_json(file: &Path, figures: &[Figure]) -> anyhow::Result<()> {
    let all: Value = figures.iter().map(Figure::to_json).collect();
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
