//! The flags.

use std::time::Duration;

use lifecycle::{ConnectArgs, check_all, check_duration, check_range};
use queue_core::WorkerName;
use telemetry::TelemetryArgs;

use crate::Options;

const PERIODS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_mins(10));
const LONGEST_INTERVAL: Duration = Duration::from_hours(24);
const CALL_TIMEOUTS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_mins(1));
const MAX_PAGE: u32 = 1_000;

/// Takes back what was abandoned: expired sessions and their leases, old partitions, broken invariants.
///
/// Two reapers may run; one acts, the other takes over. It needs no database: it asks a scheduler.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "reaper", version, after_help = EXAMPLES)]
pub struct ReaperArgs {
    /// Time between two passes, give or take a fifth.
    #[arg(long, env = "FENCEPOST_REAPER_PERIOD", default_value = "5s", value_parser = lifecycle::duration)]
    #[arg(allow_hyphen_values = true)]
    pub period: Duration,

    /// Time between two tidyings of the storage: partitions, dead sessions, expired keys.
    #[arg(long, env = "FENCEPOST_REAPER_TIDY_EVERY", default_value = "1m", value_parser = lifecycle::duration)]
    #[arg(allow_hyphen_values = true)]
    pub tidy_every: Duration,

    /// Time between two audits of the storage's invariants.
    #[arg(long, env = "FENCEPOST_REAPER_AUDIT_EVERY", default_value = "5m", value_parser = lifecycle::duration)]
    #[arg(allow_hyphen_values = true)]
    pub audit_every: Duration,

    /// Sessions marked dead per call, 1 to 1000.
    #[arg(long, env = "FENCEPOST_REAPER_SESSIONS_PAGE", default_value_t = 1_000, value_name = "ROWS")]
    #[arg(allow_negative_numbers = true)]
    pub sessions_page: u32,

    /// Leases taken back per call, 1 to 1000.
    #[arg(long, env = "FENCEPOST_REAPER_LEASES_PAGE", default_value_t = 500, value_name = "ROWS")]
    #[arg(allow_negative_numbers = true)]
    pub leases_page: u32,

    /// Bound on one try of one call.
    #[arg(long, env = "FENCEPOST_REAPER_CALL_TIMEOUT", default_value = "10s", value_parser = lifecycle::duration)]
    #[arg(allow_hyphen_values = true)]
    pub call_timeout: Duration,

    /// Name shown as holder of the maintenance lease. Host name and process id unless set.
    #[arg(long, env = "FENCEPOST_REAPER_NAME", value_parser = parse_name)]
    pub name: Option<WorkerName>,

    /// Runs one pass with everything in it and exits: 0 if it succeeded or another reaper acts, 1 if it failed or the
    /// audit found something.
    #[arg(long)]
    pub once: bool,

    /// Schedulers to call.
    #[command(flatten)]
    pub connect: ConnectArgs,

    /// Logs and metrics.
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

const EXAMPLES: &str = "Examples:
  reaper                                              a scheduler on this host
  reaper --scheduler http://a:7878,http://b:7878      any of two
  reaper --metrics-listen 0.0.0.0:9464                with /metrics, /healthz and /readyz
  FENCEPOST_TOKEN=... reaper --once                   one pass, as from cron
  reaper --scheduler https://fencepost:7878 --tls-ca ca.pem --tls-client-cert me.pem --tls-client-key me.key";

impl ReaperArgs {
    /// The checked options of passes; the error names everything that does not fit, with its flag.
    pub fn options(&self) -> anyhow::Result<Options> {
        check_all([
            check_duration("--period", self.period, PERIODS.0..=PERIODS.1),
            check_duration("--tidy-every", self.tidy_every, PERIODS.0..=LONGEST_INTERVAL),
            check_duration("--audit-every", self.audit_every, PERIODS.0..=LONGEST_INTERVAL),
            check_duration("--call-timeout", self.call_timeout, CALL_TIMEOUTS.0..=CALL_TIMEOUTS.1),
            check_range("--sessions-page", self.sessions_page, 1..=MAX_PAGE),
            check_range("--leases-page", self.leases_page, 1..=MAX_PAGE),
            self.connect.client_tls().map(drop),
            self.connect.token().map(drop),
        ])?;
        Ok(Options {
            holder: self.name.clone().map_or_else(|| WorkerName::new(&lifecycle::process_name()), Ok)?,
            tidy_every: self.tidy_every,
            audit_every: self.audit_every,
            sessions_page: self.sessions_page,
            leases_page: self.leases_page,
        })
    }
}

fn parse_name(text: &str) -> Result<WorkerName, String> {
    WorkerName::new(text).map_err(|invalid| invalid.problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_flags_are_consistent() {
        ReaperArgs::command().debug_assert();
    }

    #[test]
    fn the_defaults_are_valid() {
        let options = ReaperArgs::parse_from(["reaper"]).options().unwrap();
        assert!(options.holder.as_str().ends_with(&std::process::id().to_string()));
    }

    #[test]
    fn everything_that_does_not_fit_is_told_at_once() {
        let flags = ["reaper", "--period", "0s", "--leases-page", "0", "--tls-client-cert", "nowhere.pem"];
        let error = ReaperArgs::parse_from(flags).options().unwrap_err().to_string();
        let problems: Vec<&str> = error.lines().collect();
        assert_eq!(problems.len(), 3, "{error}");
        for (problem, flag) in problems.iter().zip(["--period", "--leases-page", "--tls-client-cert"]) {
            assert!(problem.contains(flag), "{error}");
        }
    }

    #[test]
    fn out_of_range_values_are_refused_naming_the_flag() {
        for (flag, value) in
            [("--period", "0s"), ("--leases-page", "0"), ("--sessions-page", "1001"), ("--tidy-every", "0s")]
        {
            let error = ReaperArgs::parse_from(["reaper", flag, value]).options().unwrap_err();
            assert!(error.to_string().starts_with(flag), "{error}");
        }
    }

    #[test]
    fn negative_values_are_refused_naming_the_flag() {
        for flag in ["--period", "--tidy-every", "--audit-every", "--call-timeout", "--sessions-page", "--leases-page"]
        {
            let value = if flag.ends_with("page") { "-1" } else { "-1s" };
            let error = ReaperArgs::try_parse_from(["reaper", flag, value]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("error: invalid value '{value}' for '{flag} ")), "{error}");
        }
    }

    #[test]
    fn a_name_is_refused_naming_the_flag_and_no_field() {
        let error = ReaperArgs::try_parse_from(["reaper", "--name", "a b"]).unwrap_err().to_string();
        assert!(error.contains("'--name <NAME>'") && !error.contains("worker_name"), "{error}");
    }
}
