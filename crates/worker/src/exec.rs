//! Handlers that run a command.

use std::ffi::OsString;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command as Process};
use worker::{Context, HandlerError, Success};

use crate::command::Command;
use crate::environment::without_own_variables;
use crate::group::Group;
use crate::groups::Groups;
use crate::output::{read_result, read_tail, success, tail_text};

/// Exit statuses that give the job up: `EX_DATAERR` of sysexits.h, and 100 as in qmail.
const GIVE_UP: [i32; 2] = [65, 100];
/// From SIGTERM to SIGKILL. Shorter than the worker's cancel grace, so that the end of the command is seen.
const KILL_GRACE: Duration = Duration::from_secs(1);
/// How long output is waited for once the command has ended: a child of it may hold the pipe open.
const OUTPUT_GRACE: Duration = Duration::from_millis(500);

type Run = Pin<Box<dyn Future<Output = Result<Success, HandlerError>> + Send>>;

/// A handler that runs this command for each job, in one of these groups.
pub fn handler(
    command: Command,
    groups: Arc<Groups>,
    is_effect: bool,
) -> impl Fn(Context) -> Run + Send + Sync + 'static {
    move |job| Box::pin(run(command.clone(), groups.clone(), job, is_effect))
}

async fn run(command: Command, groups: Arc<Groups>, job: Context, is_effect: bool) -> Result<Success, HandlerError> {
    let mut child = process(&command, &job).spawn().map_err(|error| {
        // It could be run when the worker started.
        tracing::warn!(program = command.program, %error, "cannot run a command");
        HandlerError::retryable("exec_failed", format!("cannot run {}: {error}", command.program))
    })?;
    let (Some(group), Some(pipes)) = (Group::of(&child, &groups), Pipes::of(&mut child)) else {
        return Err(HandlerError::retryable("exec_failed", "the command has no number or no pipes"));
    };
    let Said { result, errors } = attend(pipes, &group, &job).await?;
    // Only then is the command waited for, so that no other group had its number while this one was killed.
    drop(group);
    let status = child.wait().await?;
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
    without_own_variables(&mut process);
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

struct Pipes {
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: ChildStderr,
}

impl Pipes {
    fn of(child: &mut Child) -> Option<Self> {
        Some(Self { stdin: child.stdin.take()?, stdout: child.stdout.take()?, stderr: child.stderr.take()? })
    }
}

struct Said {
    result: Vec<u8>,
    errors: String,
}

/// Lets the command work until it ends or the job is cancelled.
async fn attend(pipes: Pipes, group: &Group, job: &Context) -> Result<Said, HandlerError> {
    let mut work = std::pin::pin!(work(pipes, group, job));
    tokio::select! {
        biased;
        () = job.cancellation().cancelled() => {}
        said = &mut work => return said,
    }
    group.signal(Signal::TERM);
    // What it says on the way out is still read: a closed pipe would kill it in the middle of its clean-up.
    // Whether it ends by itself or not: what is left of the group is killed.
    let _ = tokio::time::timeout(KILL_GRACE, &mut work).await;
    let reason = job.cancel_reason().map_or_else(String::new, ToString::to_string);
    Err(HandlerError::retryable("interrupted", reason))
}

/// Feeds the command, reads what it says, and waits for its end.
async fn work(pipes: Pipes, group: &Group, job: &Context) -> Result<Said, HandlerError> {
    let Pipes { mut stdin, stdout, stderr } = pipes;
    let feed = async move {
        // A command need not read its input; its exit status says whether it should have.
        let _ = stdin.write_all(job.payload()).await;
    };
    let (mut result, mut errors) = (Vec::new(), Vec::new());
    let talk = async { tokio::try_join!(read_result(stdout, &mut result), read_tail(stderr, &mut errors)) };
    {
        let mut talk = std::pin::pin!(talk);
        let mut exit = std::pin::pin!(async { tokio::join!(feed, group.leader_ended()).1 });
        let mut said_all = false;
        loop {
            tokio::select! {
                ended = &mut exit => {
                    ended?;
                    if !said_all {
                        tokio::time::timeout(OUTPUT_GRACE, &mut talk).await.unwrap_or(Ok(((), ())))?;
                    }
                    break;
                }
                said = &mut talk, if !said_all => {
                    said?;
                    said_all = true;
                }
            }
        }
    }
    Ok(Said { result, errors: tail_text(&errors) })
}
