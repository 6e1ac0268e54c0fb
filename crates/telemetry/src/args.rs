//! Flags that every binary has.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::ensure;
use axum::http::Uri;

/// What is logged unless told otherwise.
const DEFAULT_FILTER: &str = "info";

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum LogFormat {
    /// Human if standard error is a terminal, else JSON.
    #[default]
    Auto,
    /// One JSON object a line.
    Json,
    /// For people.
    Human,
}

/// Flags for logs, metrics and traces.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Telemetry", about = None, long_about = None)]
pub struct TelemetryArgs {
    /// Form of the log lines on standard error.
    #[arg(long, value_enum, default_value_t, env = "FENCEPOST_LOG_FORMAT")]
    pub log_format: LogFormat,

    /// What is logged: a level, or directives such as `info,scheduler=debug`.
    #[arg(long, default_value = DEFAULT_FILTER, env = "FENCEPOST_LOG", value_name = "FILTER")]
    pub log_filter: String,

    /// Serves /metrics, /healthz and /readyz here, without TLS. Off unless set; a port alone means loopback.
    #[arg(long, env = "FENCEPOST_METRICS_LISTEN", value_name = "[ADDR:]PORT", value_parser = parse_listen)]
    pub metrics_listen: Option<SocketAddr>,

    /// Exports traces and metrics to this OTLP endpoint over gRPC, such as http://127.0.0.1:4317. Off unless set.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL", hide_env_values = true)]
    pub otlp_endpoint: Option<String>,
}

impl Default for TelemetryArgs {
    fn default() -> Self {
        Self {
            log_format: LogFormat::Auto,
            log_filter: DEFAULT_FILTER.to_owned(),
            metrics_listen: None,
            otlp_endpoint: None,
        }
    }
}

impl TelemetryArgs {
    /// The filter; an empty one, as deployments leave it, is the default and not silence.
    pub(crate) fn directives(&self) -> &str {
        match self.log_filter.trim() {
            "" => DEFAULT_FILTER,
            filter => filter,
        }
    }

    /// The endpoint to export to, if there is one. An empty value is none.
    ///
    /// The error does not repeat it: it may hold credentials.
    pub(crate) fn endpoint(&self) -> anyhow::Result<Option<&str>> {
        let given = self.otlp_endpoint.as_deref().map(str::trim).filter(|endpoint| !endpoint.is_empty());
        let is_url = given.is_none_or(is_http);
        ensure!(
            is_url,
            "--otlp-endpoint (OTEL_EXPORTER_OTLP_ENDPOINT) must be a URL with http:// or https:// and a host"
        );
        Ok(given)
    }
}

fn is_http(endpoint: &str) -> bool {
    let Ok(uri) = endpoint.parse::<Uri>() else { return false };
    matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    text.parse().map_err(|_| "must be a port, or an address with a port such as 0.0.0.0:9464".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_means_loopback() {
        assert_eq!(parse_listen("9464"), Ok(SocketAddr::from(([127, 0, 0, 1], 9464))));
        assert_eq!(parse_listen("0.0.0.0:9464"), Ok(SocketAddr::from(([0, 0, 0, 0], 9464))));
        assert!(parse_listen("metrics.example:9464").is_err());
    }

    #[test]
    fn empty_values_are_not_set() {
        let (otlp_endpoint, log_filter) = (Some(" ".to_owned()), String::new());
        let args = TelemetryArgs { log_filter, otlp_endpoint, ..TelemetryArgs::default() };
        assert_eq!(args.directives(), "info");
        assert_eq!(args.endpoint().unwrap(), None);
    }

    #[test]
    fn an_endpoint_must_be_a_url_and_is_not_repeated() {
        let check = |endpoint: &str| {
            let args = TelemetryArgs { otlp_endpoint: Some(endpoint.to_owned()), ..TelemetryArgs::default() };
            args.endpoint().map(|endpoint| endpoint.map(str::to_owned))
        };
        for endpoint in ["http://127.0.0.1:4317", "https://collector", "HTTPS://collector:4317/x"] {
            assert_eq!(check(endpoint).unwrap().as_deref(), Some(endpoint));
        }
        for endpoint in ["planted", "planted:4317", "ftp://planted", "http://", "http://:4317", "http://plan ted"] {
            let error = check(endpoint).unwrap_err().to_string();
            assert!(error.starts_with("--otlp-endpoint") && !error.contains("plan"), "{error}");
        }
    }
}
