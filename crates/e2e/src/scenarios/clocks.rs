//! Clocks that are wrong, and that jump.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use rand::RngExt as _;
use tokio::time::sleep;

use super::{JOBS, mixed, soon};
use crate::world::{TTL, World};

/// What lies about the time, where distributions put it.
const LIBRARY: &str = "libfaketimeMT.so.1";

/// How wrong a clock may be, in seconds.
const WRONG: i64 = 6 * 3_600;

/// Why this cannot be tried here, if so.
pub(super) fn lacks() -> Option<&'static str> {
    library().is_none().then_some("libfaketime is not installed")
}

fn library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().filter_map(Result::ok);
    let folders = folders.map(|folder| folder.path().join("faketime")).chain([PathBuf::from("/usr/lib/faketime")]);
    folders.map(|folder| folder.join(LIBRARY)).find(|library| library.is_file())
}

/// The clock of a process, in a file that it reads each time that it looks.
struct Clock(PathBuf);

impl Clock {
    fn new(folder: &Path, number: usize) -> Self {
        Self(folder.join(format!("clock-{number}")))
    }

    fn set(&self, seconds: i64) -> anyhow::Result<()> {
        fs::write(&self.0, format!("{seconds:+}")).with_context(|| format!("write {}", self.0.display()))
    }

    /// Only the time of day: what measures spans is right in every process.
    fn env(&self) -> anyhow::Result<Vec<(&'static str, String)>> {
        let library = library().context("find libfaketime")?;
        Ok(vec![
            ("LD_PRELOAD", library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.0.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ])
    }
}

pub(super) async fn wrong(world: &mut World) -> anyhow::Result<()> {
    let clocks: Vec<Clock> = (0..5).map(|number| Clock::new(world.history(), number)).collect();
    for (number, clock) in clocks.iter().enumerate() {
        clock.set(world.rng.random_range(-WRONG..WRONG))?;
        world.env = clock.env()?;
        match number {
            0 | 1 => world.add_scheduler().await?,
            _ => world.add_worker(8),
        }
    }
    world.add_reaper(Duration::from_millis(300));
    world.fault("clocks wrong by hours");
    world.producer()?.enqueue(JOBS, mixed, soon).await?;
    for _ in 0..4 {
        sleep(Duration::from_secs(1).mul_f64(world.rng.random())).await;
        for clock in &clocks {
            clock.set(world.rng.random_range(-WRONG..WRONG))?;
        }
    }
    world.workers.swap_remove(0).kill();
    world.rest(TTL * 10).await?;
    world.healed("clocks wrong by hours");
    Ok(())
}
