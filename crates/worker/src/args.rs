//! The flags of the stock worker.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use clap::Parser;
use lifecycle::ConnectArgs;
use telemetry::TelemetryArgs;
use worker::{DEFAULT_MAX_MESSAGE_BYTES, Worker};

use crate::command::Command;
use crate::groups::Groups;
use crate::{exec, http};

const EXAMPLES: &str = "\
Exec handlers: the command gets the payload on standard input and FENCEPOST_JOB_ID, FENCEPOST_QUEUE, FENCEPOST_KIND, \
FENCEPOST_KEY (if the job has one), FENCEPOST_FENCING_TOKEN, FENCEPOST_ATTEMPT, FENCEPOST_MAX_ATTEMPTS, \
FENCEPOST_HEADER_<NAME> and TRACEPARENT in its environment, and no other FENCEPOST_ or OTEL_ variable. It is run \
directly, not by a shell; quotes and backslashes work as in one. Exit status 0 is success and standard output the \
result (at most 1 MiB); 65 and 100 give the job up; any other status, such as 75, and any signal is a failure that is \
tried again. The end of standard error is the error text. On a lost lease, a timeout or a drain its process group \
gets SIGTERM and a second later SIGKILL; nothing of the group outlives the attempt. Should the worker itself be killed, \
a process of its own, `worker guard`, ends the groups.

Http handlers: the payload is sent by POST, with Idempotency-Key (bytes other than visible ASCII, and %, as %XX), \
Fencepost-Job-Id, Fencepost-Fencing-Token, Fencepost-Attempt, traceparent and the job's headers. Where both are set, \
these headers and the credentials of the URL win over the job's; a job's header that HTTP cannot carry gives the job up. \
2xx is success and the body the result (at most 1 MiB); 408, 425, 429 and 5xx are tried again, after Retry-After if it is \
given; everything else gives the job up. Redirects are not followed.

Examples:
  worker --exec 'thumbnail=convert - -resize 200x200 png:-' --queue images
  worker --http mail.send=http://127.0.0.1:8080/send --queue high,low --concurrency 50
  worker --exec 'import=/opt/import --strict' --effect import --scheduler https://a:7878,https://b:7878";

/// Runs jobs: a command or a URL for each kind.
#[derive(Debug, Parser)]
#[command(name = "worker", version, after_help = EXAMPLES)]
pub struct Args {
    /// Runs a command for each job of a kind. May be repeated; in the variable, one a line.
    #[arg(long, env = "FENCEPOST_EXEC", value_name = "KIND=COMMAND", value_delimiter = '\n', value_parser = parse_exec)]
    exec: Vec<(String, Command)>,

    /// Posts each job of a kind to a URL. May be repeated; in the variable, one a line.
    #[arg(long, env = "FENCEPOST_HTTP", value_name = "KIND=URL", value_delimiter = '\n', value_parser = parse_http)]
    #[arg(hide_env_values = true)]
    http: Vec<(String, reqwest::Url)>,

    /// Kinds whose result is also committed as the job's effect, once per idempotency key.
    #[arg(long, env = "FENCEPOST_EFFECT", value_name = "KIND", value_delimiter = ',')]
    effect: Vec<String>,

    /// Queues to work on, the most important first.
    #[arg(long = "queue", visible_alias = "queues", env = "FENCEPOST_QUEUES", value_name = "QUEUE")]
    #[arg(value_delimiter = ',', default_value = "default")]
    queues: Vec<String>,

    /// Jobs that run at once.
    #[arg(long, env = "WORKER_CONCURRENCY", default_value_t = worker::DEFAULT_CONCURRENCY)]
    concurrency: u32,

    /// Name for people; identifies nothing. Default: host and process.
    #[arg(long, env = "FENCEPOST_WORKER_NAME")]
    name: Option<String>,

    /// How long running jobs may go on after SIGTERM. Keep what kills the process at least 10 s above it.
    #[arg(long, env = "FENCEPOST_DRAIN_GRACE", default_value = "25s", value_parser = lifecycle::duration)]
    grace: Duration,

    /// Largest message to accept, at least 1 MiB above the largest payload.
    #[arg(long, env = "FENCEPOST_MAX_MESSAGE_BYTES", default_value_t = DEFAULT_MAX_MESSAGE_BYTES)]
    max_message_bytes: usize,

    #[command(flatten)]
    connect: ConnectArgs,

    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

impl Args {
    /// Whether any handler is a command.
    pub fn has_commands(&self) -> bool {
        !self.exec.is_empty()
    }

    /// The worker that the flags describe; its commands run in these groups.
    pub fn worker(self, groups: &Arc<Groups>) -> anyhow::Result<Worker> {
        let kinds: Vec<&String> =
            self.exec.iter().map(|(kind, _)| kind).chain(self.http.iter().map(|(k, _)| k)).collect();
        ensure!(!kinds.is_empty(), "give at least one handler: --exec KIND=COMMAND or --http KIND=URL");
        for kind in &self.effect {
            ensure!(kinds.contains(&kind), "--effect {kind}: there is no handler for this kind");
        }
        for (kind, command) in &self.exec {
            command.check().map_err(|problem| anyhow!("--exec {kind}: {problem}"))?;
        }
        tracing::info!(
            queues = self.queues.join(","),
            concurrency = self.concurrency,
            grace = ?self.grace,
            handlers = kinds.len(),
            "working"
        );
        let mut builder = Worker::builder()
            .connect(self.connect.options()?)
            .queues(self.queues)
            .concurrency(self.concurrency)
            .drain_grace(self.grace)
            .max_message_bytes(self.max_message_bytes)
            .build_id(env!("CARGO_PKG_VERSION"));
        if let Some(name) = self.name {
            builder = builder.name(name);
        }
        for (kind, command) in self.exec {
            let effect = self.effect.contains(&kind);
            builder = builder.handler(kind, exec::handler(command, groups.clone(), effect));
        }
        let client = http::client().context("set up the HTTP client")?;
        for (kind, url) in self.http {
            let effect = self.effect.contains(&kind);
            builder = builder.handler(kind, http::handler(client.clone(), url, effect));
        }
        Ok(builder.build()?)
    }
}

fn parse_exec(text: &str) -> Result<(String, Command), String> {
    let (kind, command) = text.split_once('=').ok_or("must be KIND=COMMAND")?;
    Ok((kind.trim().to_owned(), Command::parse(command)?))
}

fn parse_http(text: &str) -> Result<(String, reqwest::Url), String> {
    let (kind, url) = text.split_once('=').ok_or("must be KIND=URL")?;
    // The error does not repeat the URL: it may hold credentials.
    let url = reqwest::Url::parse(url.trim()).map_err(|error| format!("is not a URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("the URL must start with http:// or https://".to_owned());
    }
    Ok((kind.trim().to_owned(), url))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clap::{CommandFactory, Parser};

    use super::Args;

    #[test]
    fn the_flags_are_consistent_and_the_help_has_examples() {
        Args::command().debug_assert();
        let help = Args::command().render_long_help().to_string();
        assert!(help.contains("Examples:") && help.contains("WORKER_CONCURRENCY"));
    }

    #[test]
    fn handlers_are_parsed_or_refused_with_a_reason() {
        let parse = |flag: &str, value: &str| Args::try_parse_from(["worker", flag, value]).map_err(|e| e.to_string());
        assert!(parse("--exec", "a=cat").is_ok());
        assert!(parse("--http", "a=http://localhost:1/x?y=z").is_ok());
        for (flag, value, reason) in [
            ("--exec", "cat", "KIND=COMMAND"),
            ("--exec", "a=", "names no command"),
            ("--exec", "a=cat 'x", "quote"),
            ("--http", "a=ftp://x", "http://"),
            ("--http", "a=x", "not a URL"),
        ] {
            let error = parse(flag, value).err().unwrap_or_default();
            assert!(error.contains(reason), "{flag} {value}: {error}");
        }
    }

    #[test]
    fn a_worker_without_handlers_or_with_an_effect_without_handler_is_refused() {
        for args in [vec!["worker"], vec!["worker", "--exec", "a=cat", "--effect", "b"]] {
            assert!(Args::parse_from(args).worker(&Arc::default()).is_err());
        }
    }

    #[test]
    fn a_command_that_cannot_be_run_is_refused_naming_flag_and_program() {
        for program in ["/nonexistent/x", "nonexistent-x"] {
            let args = ["worker", "--exec", "a=cat", "--exec", &format!("k={program} -v")];
            let error = Args::parse_from(args).worker(&Arc::default()).err().map(|error| error.to_string());
            let error = error.unwrap_or_default();
            assert!(error.starts_with(&format!("--exec k: cannot run {program}: ")), "{error}");
        }
    }
}
