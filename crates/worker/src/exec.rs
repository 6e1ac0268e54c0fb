//! Handlers that run a command.

use std::ffi::OsString;
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command as Process};
use worker::{Context, HandlerError, Success};

use crate::command::Command;
use crate::output::{read_result, read_tail, success, tail_text};

/// Exit statuses that give the job up: `EX_DATAERR` of sysexits.h, and 100 as in qmail.
const GIVE_UP: [i32; 2] = [65, 100];
/// From SIGTERM to SIGKILL. Shorter than the worker's cancel grace, so that the end of the command is seen.
const KILL_GRACE: Duration = Duration::from_secs(1);
/// How long output is waited for once the command has ended: a child of it may hold the pipe open.
const OUTPUT_GRACE: Duration = Duration::from_millis(500);
/// Variables of the worker that commands do not get: its credentials are among them.
const OWN_VARIABLES: [&str; 2] = ["FENCEPOST_", "OTEL_"];

type Run = Pin<Box<dyn Future<Output = Result<Success, HandlerError>> + Send>>;

/// A handler that runs this command for each job.
pub fn handler(command: Command, is_effect: bool) -> impl Fn(Context) -> Run + Send + Sync + 'static {
    move |job| Box::pin(run(command.clone(), job, is_effect))
}

async fn run(command: Command, job: Context, is_effect: bool) -> Result<Success, HandlerError> {
    let mut child = process(&command, &job)
        .spawn()
        .map_err(|error| HandlerError::retryable("exec_failed", format!("cannot run {}: {error}", command.program)))?;
    let group = Group::of(&child);
    let mut work = std::pin::pin!(work(&mut child, &job));
    let ended = tokio::select! {
        biased;
        () = job.cancellation().cancelled() => None,
        ended = &mut work => Some(ended),
    };
    let Some(ended) = ended else {
        group.signal(Signal::TERM);
        // What it says on the way out is still read: a closed pipe would kill it in the middle of its clean-up.
        // Whether it ends by itself or not: what is left of the group is killed.
        let _ = tokio::time::timeout(KILL_GRACE, &mut work).await;
        group.signal(Signal::KILL);
        let reason = job.cancel_reason().map_or_else(String::new, ToString::to_string);
        return Err(HandlerError::retryable("interrupted", reason));
    };
    let Ended { status, result, errors } = ended?;
    match status.code() {
        Some(0) => Ok(success(result, is_effect)),
        Some(code) if GIVE_UP.contains(&code) => Err(HandlerError::permanent(&format!("exit_{code}"), errors)),
        Some(code) => Err(HandlerError::retryable(&format!("exit_{code}"), errors)),
        None => Err(HandlerError::retryable("signal", format!("{status}\n{errors}"))),
    }
}

fn process(command: &Command, job: &Context) -> Process {
    let mut process = Process::new(&command.program);
    process.args(&command.arguments);
    for (name, _) in std::env::vars_os() {
        if OWN_VARIABLES.iter().any(|own| name.to_string_lossy().starts_with(own)) {
            process.env_remove(name);
        }
    }
    process.envs(variables(job));
    process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    process.process_group(0).kill_on_drop(true);
    process
}

fn variables(job: &Context) -> Vec<(OsString, OsString)> {
    let mut variables = vec![
        ("FENCEPOST_JOB_ID".to_owned(), job.job_id().to_string()),
        ("FENCEPOST_QUEUE".to_owned(), job.queue().to_owned()),
        ("FENCEPOST_KIND".to_owned(), job.kind().to_owned()),
        ("FENCEPOST_FENCING_TOKEN".to_owned(), job.token().to_string()),
        ("FENCEPOST_ATTEMPT".to_owned(), job.attempt().to_string()),
        ("FENCEPOST_MAX_ATTEMPTS".to_owned(), job.max_attempts().to_string()),
    ];
    variables.extend(job.idempotency_key().map(|key| ("FENCEPOST_KEY".to_owned(), key.to_owned())));
    variables.extend(job.headers().iter().map(|(name, value)| (header_variable(name), value.clone())));
    let traceparent = telemetry::current_traceparent().or_else(|| job.traceparent().map(str::to_owned));
    variables.extend(traceparent.map(|traceparent| ("TRACEPARENT".to_owned(), traceparent)));
    // A NUL cannot be in a variable; schedulers refuse it, so this only guards against one that does not.
    variables.retain(|(_, value)| !value.contains('\0'));
    variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
}

fn header_variable(name: &str) -> String {
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
    format!("FENCEPOST_HEADER_{name}")
}

struct Ended {
    status: ExitStatus,
    result: Vec<u8>,
    errors: String,
}

/// Feeds the command, reads what it says, and waits for its end.
async fn work(child: &mut Child, job: &Context) -> Result<Ended, HandlerError> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        return Err(HandlerError::retryable("exec_failed", "the command has no pipes"));
    };
    let feed = async move {
        // A command need not read its input; its exit status says whether it should have.
        let _ = stdin.write_all(job.payload()).await;
    };
    let (mut result, mut errors) = (Vec::new(), Vec::new());
    let talk = async { tokio::try_join!(read_result(stdout, &mut result), read_tail(stderr, &mut errors)) };
    let status = {
        let mut talk = std::pin::pin!(talk);
        let mut exit = std::pin::pin!(async {
            let ((), status) = tokio::join!(feed, child.wait());
            status
        });
        let mut said_all = false;
        loop {
            tokio::select! {
                status = &mut exit => {
                    if !said_all {
                        tokio::time::timeout(OUTPUT_GRACE, &mut talk).await.unwrap_or(Ok(((), ())))?;
                    }
                    break status?;
                }
                said = &mut talk, if !said_all => {
                    said?;
                    said_all = true;
                }
            }
        }
    };
    Ok(Ended { status, result, errors: tail_text(&errors) })
}

/// The command and everything it started. Killed at the end of the attempt, however that comes about.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self(id.and_then(Pid::from_raw))
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // Fails if nothing is left of it.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
