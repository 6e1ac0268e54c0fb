//! The flags of the stock worker.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use clap::Parser;
use client::ConnectOptions;
use lifecycle::{ConnectArgs, check_all, check_duration, check_range};
use queue_core::{MAX_CAPACITY, MAX_SESSION_QUEUES, QueueName, WorkerName};
use telemetry::TelemetryArgs;
use worker::{
    DEFAULT_MAX_MESSAGE_BYTES, MAX_DRAIN_GRACE, MAX_MAX_MESSAGE_BYTES, MIN_MAX_MESSAGE_BYTES, Worker, WorkerBuilder,
};

use crate::groups::Groups;
use crate::handlers::Handlers;
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
    #[arg(long, env = "FENCEPOST_EXEC", value_name = "KIND=COMMAND", value_delimiter = '\n')]
    exec: Vec<String>,

    /// Posts each job of a kind to a URL. May be repeated; in the variable, one a line.
    #[arg(long, env = "FENCEPOST_HTTP", value_name = "KIND=URL", value_delimiter = '\n')]
    #[arg(hide_env_values = true)]
    http: Vec<String>,

    /// Kinds whose result is also committed as the job's effect, once per idempotency key.
    #[arg(long, env = "FENCEPOST_EFFECT", value_name = "KIND", value_delimiter = ',')]
    effect: Vec<String>,

    /// Queues to work on, the most important first.
    #[arg(long = "queue", visible_alias = "queues", env = "FENCEPOST_QUEUES", value_name = "QUEUE")]
    #[arg(value_delimiter = ',', default_value = "default", value_parser = parse_queue)]
    queues: Vec<QueueName>,

    /// Jobs that run at once.
    #[arg(long, env = "WORKER_CONCURRENCY", default_value_t = worker::DEFAULT_CONCURRENCY, allow_negative_numbers = true)]
    concurrency: u32,

    /// Name for people; identifies nothing. Default: host and process.
    #[arg(long, env = "FENCEPOST_WORKER_NAME", value_parser = parse_name)]
    name: Option<WorkerName>,

    /// How long running jobs may go on after SIGTERM. Keep what kills the process at least 10 s above it.
    #[arg(long, env = "FENCEPOST_DRAIN_GRACE", default_value = "25s", value_parser = lifecycle::duration)]
    #[arg(allow_hyphen_values = true)]
    grace: Duration,

    /// Largest message to accept, at least 1 MiB above the largest payload.
    #[arg(long, env = "FENCEPOST_MAX_MESSAGE_BYTES", default_value_t = DEFAULT_MAX_MESSAGE_BYTES)]
    #[arg(allow_negative_numbers = true)]
    max_message_bytes: usize,

    #[command(flatten)]
    connect: ConnectArgs,

    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

impl Args {
    /// The worker that the flags describe, whose commands run in these groups, and whether it has any.
    ///
    /// The error names everything that does not fit, with its flag.
    pub fn worker(self, groups: &Arc<Groups>) -> anyhow::Result<(Worker, bool)> {
        let (handlers, connect) = self.checked()?;
        tracing::info!(
            queues = self.queues.iter().map(QueueName::as_str).collect::<Vec<_>>().join(","),
            concurrency = self.concurrency,
            grace = ?self.grace,
            handlers = handlers.kinds().count(),
            "working"
        );
        let mut builder = Worker::builder()
            .connect(connect)
            .queues(self.queues.iter().map(QueueName::as_str))
            .concurrency(self.concurrency)
            .drain_grace(self.grace)
            .max_message_bytes(self.max_message_bytes)
            .build_id(env!("CARGO_PKG_VERSION"));
        if let Some(name) = &self.name {
            builder = builder.name(name.as_str());
        }
        let has_commands = !handlers.commands.is_empty();
        Ok((self.with_handlers(builder, handlers, groups)?.build()?, has_commands))
    }

    fn checked(&self) -> anyhow::Result<(Handlers, ConnectOptions)> {
        let handlers = Handlers::parse(&self.exec, &self.http)
            .and_then(|handlers| self.check_effects(&handlers).map(|()| handlers));
        let connect = self.connect.options();
        let messages = MIN_MAX_MESSAGE_BYTES..=MAX_MAX_MESSAGE_BYTES;
        check_all([
            problem(&handlers),
            self.check_queues(),
            check_range("--concurrency", self.concurrency, 1..=MAX_CAPACITY),
            check_range("--max-message-bytes", self.max_message_bytes, messages),
            check_duration("--grace", self.grace, Duration::ZERO..=MAX_DRAIN_GRACE),
            problem(&connect),
        ])?;
        Ok((handlers?, connect?))
    }

    fn check_effects(&self, handlers: &Handlers) -> anyhow::Result<()> {
        let known = |effect: &str| handlers.kinds().any(|kind| kind.as_str() == effect);
        let unknown = self.effect.iter().find(|effect| !known(effect));
        unknown.map_or(Ok(()), |effect| Err(anyhow!("--effect {effect}: there is no handler for this kind")))
    }

    fn check_queues(&self) -> anyhow::Result<()> {
        let mut queues = BTreeSet::new();
        for queue in &self.queues {
            ensure!(queues.insert(queue), "--queue: {queue} is there twice");
        }
        check_range("the number of --queue", queues.len(), 1..=MAX_SESSION_QUEUES)
    }

    fn with_handlers(
        &self,
        mut builder: WorkerBuilder,
        handlers: Handlers,
        groups: &Arc<Groups>,
    ) -> anyhow::Result<WorkerBuilder> {
        let is_effect = |kind: &str| self.effect.iter().any(|effect| effect == kind);
        for (kind, command) in handlers.commands {
            let effect = is_effect(kind.as_str());
            builder = builder.handler(kind.as_str(), exec::handler(command, groups.clone(), effect));
        }
        let client = http::client().context("set up the HTTP client")?;
        for (kind, url) in handlers.urls {
            let effect = is_effect(kind.as_str());
            builder = builder.handler(kind.as_str(), http::handler(client.clone(), url, effect));
        }
        Ok(builder)
    }
}

/// What is wrong with it, to be told with the rest.
fn problem<T>(checked: &anyhow::Result<T>) -> anyhow::Result<()> {
    checked.as_ref().map(drop).map_err(|error| anyhow!("{error:#}"))
}

fn parse_queue(text: &str) -> Result<QueueName, String> {
    QueueName::new(text).map_err(|invalid| invalid.problem)
}

fn parse_name(text: &str) -> Result<WorkerName, String> {
    WorkerName::new(text).map_err(|invalid| invalid.problem)
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

    /// Why a worker with these flags besides a handler is refused.
    fn refusal(flags: &[&str]) -> String {
        let args = match Args::try_parse_from(["worker", "--exec", "a=cat"].iter().chain(flags)) {
            Ok(args) => args,
            Err(error) => return error.to_string(),
        };
        args.worker(&Arc::default()).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn everything_that_does_not_fit_is_told_at_once() {
        let flags = ["--exec", "=x", "--concurrency", "0", "--queue", "a,a", "--scheduler", "ftp://a"];
        let error = refusal(&flags);
        for flag in ["--exec: the kind", "--concurrency is 0", "--queue: a", "--scheduler `ftp://a`"] {
            assert!(error.contains(flag), "{flag}: {error}");
        }
    }

    #[test]
    fn settings_that_cannot_work_are_refused_naming_the_flag_and_no_field() {
        let queues = (0..65).map(|queue| format!("q{queue}")).collect::<Vec<_>>().join(",");
        for (flag, value, problem) in [
            ("--name", "no spaces", "has the character ' '"),
            ("--name", "", "is required"),
            ("--queue", "a b", "has the character ' '"),
            ("--queue", "a,b,a", "a is there twice"),
            ("--queue", &queues, "is 65: must be between 1 and 64"),
            ("--concurrency", "0", "is 0: must be between 1 and 10000"),
            ("--concurrency", "-1", "invalid value '-1'"),
            ("--max-message-bytes", "-1", "invalid value '-1'"),
            ("--grace", "-1s", "invalid value '-1s'"),
            ("--grace", "25h", "is 1day 1h: must be between 0s and 1day"),
            ("--max-message-bytes", "1", "is 1: must be between 1048576 and"),
            ("--effect", "b", "there is no handler for this kind"),
            ("--http", "a=http://h/", "two handlers for a"),
        ] {
            let error = refusal(&[flag, value]);
            assert!(error.contains(flag) && error.contains(problem), "{flag} {value}: {error}");
            for field in ["worker_name", "kind:", "concurrency:", "grace:", "max_message_bytes", "queues", "hello"] {
                assert!(!error.contains(field), "{flag} {value}: {error}");
            }
        }
    }
}
