//! The whole `main` of a binary.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use telemetry::TelemetryArgs;
use tokio::runtime::{Builder, Runtime};

use crate::signals::{self, HardStop};
use crate::{Shutdown, panics};

/// How long blocking threads may still run when everything else is over.
const RUNTIME_STOP_BOUND: Duration = Duration::from_secs(1);

/// Runs a service from start to exit code.
///
/// Builds the multi-threaded runtime, installs the crypto provider, starts telemetry and listens for signals; then runs
/// `main` and logs its error once, as one line with its causes. Exits with 0 if `main` succeeded, 1 if it failed, and
/// 130 or 143 if a second SIGINT or SIGTERM stopped it, at the latest [`crate::HARD_STOP_BOUND`] after that signal.
/// `main` must itself end soon after the soft token fires.
#[expect(clippy::needless_pass_by_value, reason = "so that main may take the rest of the flags by value")]
pub fn run<F>(service: &'static str, telemetry: TelemetryArgs, main: impl FnOnce(Shutdown) -> F) -> ExitCode
where
    F: Future<Output = anyhow::Result<()>>,
{
    match start(service, &telemetry) {
        Ok(started) => started.finish(service, main),
        Err(error) => {
            // Telemetry may not run yet, so this cannot be a log line.
            eprintln!("{service}: cannot start: {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

struct Started {
    // Before the runtime, because the last export needs it.
    telemetry: telemetry::Guard,
    runtime: Runtime,
    shutdown: Shutdown,
    stop: HardStop,
}

fn start(service: &'static str, args: &TelemetryArgs) -> anyhow::Result<Started> {
    // Fails only if one is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = Builder::new_multi_thread().enable_all().thread_name(service).build().context("start the runtime")?;
    let telemetry = {
        let _entered = runtime.enter();
        telemetry::init(service, args)?
    };
    panics::log();
    let shutdown = Shutdown::new();
    let stop = signals::listen(shutdown.clone()).context("listen for signals")?;
    Ok(Started { telemetry, runtime, shutdown, stop })
}

impl Started {
    fn finish<F>(self, service: &'static str, main: impl FnOnce(Shutdown) -> F) -> ExitCode
    where
        F: Future<Output = anyhow::Result<()>>,
    {
        self.close_with_drain();
        tracing::info!(version = env!("CARGO_PKG_VERSION"), pid = std::process::id(), "starting {service}");
        let result = self.runtime.block_on(async { main(self.shutdown).await });
        let code = conclude(service, &result, &self.stop);
        drop(self.telemetry);
        self.runtime.shutdown_timeout(RUNTIME_STOP_BOUND);
        code
    }
}

impl Started {
    /// Traffic is sent elsewhere from the first moment of a drain, whatever the passes of `main` say later.
    fn close_with_drain(&self) {
        let soft = self.shutdown.soft().clone();
        self.runtime.spawn(async move {
            soft.cancelled().await;
            telemetry::readiness().close("draining");
        });
    }
}

fn conclude(service: &'static str, result: &anyhow::Result<()>, stop: &HardStop) -> ExitCode {
    if let Err(error) = result {
        tracing::error!(error = one_line(error), "{service} failed");
    } else {
        tracing::info!("{service} stopped");
    }
    let code = if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    stop.exit_code().unwrap_or(code)
}

/// The error and its causes in one line, also if a cause has several.
fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_with_causes_is_one_line() {
        let error = anyhow::anyhow!("connection refused\n  after 3 s").context("connect to the database");
        assert_eq!(one_line(&error), "connect to the database: connection refused after 3 s");
    }
}
