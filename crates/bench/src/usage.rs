//! What processes have used, as Linux tells it; nothing elsewhere.

use std::{fs, path::Path};

use rustix::param::clock_ticks_per_second;

const KIB_PER_MIB: f64 = 1024.0;

/// What one process or several have used so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// Seconds of a core.
    pub(crate) cpu: f64,
    /// The most memory, summed; of PostgreSQL only what is private to its processes, now.
    pub(crate) mib: f64,
}

impl std::iter::Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self { cpu: a.cpu + b.cpu, mib: a.mib + b.mib })
    }
}

/// Of these processes; one that is gone used nothing.
pub(crate) fn of(pids: impl IntoIterator<Item = u32>) -> Usage {
    let one = |pid| Usage { cpu: Stat::of(pid).map_or(0.0, |stat| stat.own), mib: status(pid, "VmHWM") };
    pids.into_iter().map(one).sum()
}

/// Of this process; its memory counts from the last [`forget_peak`] on.
pub(crate) fn own() -> Usage {
    of([std::process::id()])
}

/// Starts to look for the most memory of this process anew.
pub(crate) fn forget_peak() {
    // Where it cannot be reset it is that of the whole run.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Where the machine stands: how busy it was, and with what of ours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    busy: f64,
    ours: f64,
}

impl Machine {
    /// Looks now. Ours are this process, the database server, and all that they started, once it has ended.
    pub(crate) fn look(postmaster: u32) -> Self {
        let own = Stat::of(std::process::id()).map_or(0.0, |stat| stat.own + stat.ended);
        let busy = busy(&fs::read_to_string("/proc/stat").unwrap_or_default()).unwrap_or(0.0);
        Self { busy, ours: own + of_postgres(postmaster).cpu }
    }

    /// Seconds of a core that went to anything else since then.
    pub(crate) fn others_since(self, then: Self) -> f64 {
        (self.busy - then.busy - (self.ours - then.ours)).max(0.0)
    }
}

/// Memory that a process has now, in MiB.
pub(crate) fn resident_mib(pid: u32) -> f64 {
    status(pid, "VmRSS")
}

/// Of a PostgreSQL server with all its processes, those that have ended included.
pub(crate) fn of_postgres(postmaster: u32) -> Usage {
    let children =
        children(postmaster).into_iter().map(|(pid, stat)| Usage { cpu: stat.own, mib: status(pid, "RssAnon") });
    let first = Stat::of(postmaster).map_or(0.0, |stat| stat.own + stat.ended);
    children.chain([Usage { cpu: first, mib: status(postmaster, "RssAnon") }]).sum()
}

/// Seconds that the cores of this machine were busy since its start, taken by other machines included. The first line: user, nice, system, idle, waiting for a disk, interrupts of two kinds, stolen.
fn busy(stat: &str) -> Option<f64> {
    let fields: Vec<f64> =
        stat.lines().next()?.split_whitespace().skip(1).filter_map(|text| text.parse().ok()).collect();
    Some([0, 1, 2, 5, 6, 7].iter().filter_map(|&at| fields.get(at)).sum::<f64>() / hertz())
}

#[expect(clippy::cast_precision_loss, reason = "it is 100")]
fn hertz() -> f64 {
    clock_ticks_per_second() as f64
}

/// What `/proc/PID/stat` says.
#[derive(Debug, Clone, Copy)]
struct Stat {
    parent: u32,
    /// Seconds of a core.
    own: f64,
    /// Seconds of a core that children used which have ended.
    ended: f64,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name before may hold anything.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<u32>().ok().map(f64::from);
        let hertz = hertz();
        let own = (ticks(11)? + ticks(12)?) / hertz;
        Some(Self { parent: fields.get(1)?.parse().ok()?, own, ended: (ticks(13)? + ticks(14)?) / hertz })
    }
}

fn children(parent: u32) -> Vec<(u32, Stat)> {
    let entries = fs::read_dir(Path::new("/proc")).into_iter().flatten().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, Stat::of(pid)?))).filter(|(_, stat)| stat.parent == parent).collect()
}

/// A line of `/proc/PID/status` in MiB; 0 where there is none.
fn status(pid: u32, name: &str) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    kib(&text, name).unwrap_or(0.0) / KIB_PER_MIB
}

fn kib(status: &str, name: &str) -> Option<f64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_blanks_and_brackets_do_not_shift_the_fields() -> anyhow::Result<()> {
        let text = "42 (a) b) S 7 42 42 0 -1 4194560 1 2 3 4 300 100 50 10 20 0 1 0 99";
        let stat = Stat::parse(text).ok_or_else(|| anyhow::anyhow!("not parsed"))?;
        assert_eq!(stat.parent, 7);
        assert!(stat.own > stat.ended && stat.ended > 0.0);
        Ok(())
    }

    #[test]
    fn a_machine_that_waits_is_not_busy() {
        let stat = "cpu  100 0 50 9000 700 0 10 40 0 0\ncpu0 1 2 3 4\n";
        assert!(busy(stat).is_some_and(|seconds| (seconds * hertz() - 200.0).abs() < 1e-6));
        assert_eq!(busy(""), None);
    }

    #[test]
    fn memory_is_read_by_the_whole_name() {
        let status = "VmHWMX:\t 9 kB\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(kib(status, "VmHWM"), Some(2048.0));
        assert_eq!(kib(status, "RssAnon"), None);
    }
}
