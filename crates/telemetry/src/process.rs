//! The process itself: uptime, memory, descriptors.

use opentelemetry::metrics::Meter;
use tokio::time::Instant;

/// Registers observable instruments, which are read only when somebody collects.
pub(crate) fn register(meter: &Meter, started: Instant) {
    meter
        .f64_observable_gauge("process.uptime")
        .with_unit("s")
        .with_description("Time since the process started")
        .with_callback(move |observer| observer.observe(started.elapsed().as_secs_f64(), &[]))
        .build();
    meter
        .u64_observable_gauge("process.memory.usage")
        .with_unit("By")
        .with_description("Resident memory")
        .with_callback(|observer| {
            if let Some(bytes) = resident_bytes() {
                observer.observe(bytes, &[]);
            }
        })
        .build();
    meter
        .u64_observable_gauge("process.open_file_descriptors")
        .with_description("Open file descriptors")
        .with_callback(|observer| {
            if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
                observer.observe(entries.count() as u64, &[]);
            }
        })
        .build();
}

/// From the kernel's status file; none where there is no such file.
fn resident_bytes() -> Option<u64> {
    parse_resident(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn parse_resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_from_the_status_file() {
        assert_eq!(parse_resident("Name:\tx\nVmRSS:\t    2048 kB\n"), Some(2 * 1024 * 1024));
        assert_eq!(parse_resident("Name:\tx\n"), None);
    }
}
