//! The first message of a stream, checked.

use std::collections::HashSet;

use queue_core::{
    Invalid, JobId, KindName, MAX_CAPACITY, MAX_NAME_CHARS, MAX_SESSION_KINDS, MAX_SESSION_QUEUES, QueueName,
    SessionId, Token, WorkerName, checked_text,
};
use queue_proto::v1;
use queue_store::Hello;

use crate::profile::Wants;

/// Room in a message beside the largest payload.
const MESSAGE_MARGIN: usize = 1 << 20;
/// What tonic's clients accept unless told otherwise.
const DEFAULT_MESSAGE_BYTES: usize = 4 << 20;

/// A Hello whose every field is valid.
#[derive(Debug)]
pub struct Opening {
    /// What is stored of it.
    pub hello: Hello,
    /// What the worker listens to.
    pub wants: Wants,
    /// Leases it says it holds.
    pub held: HashSet<(JobId, Token)>,
    /// Largest message it accepts.
    pub max_message_bytes: usize,
}

impl Opening {
    /// Checks a Hello; `max_payload_bytes` is what a grant may have to carry.
    pub fn check(hello: v1::Hello, max_payload_bytes: usize) -> Result<Self, Invalid> {
        let max_message_bytes = hello
            .max_message_bytes
            .map_or(DEFAULT_MESSAGE_BYTES.max(max_payload_bytes + MESSAGE_MARGIN), |bytes| bytes as usize);
        if max_message_bytes < max_payload_bytes + MESSAGE_MARGIN {
            let least = max_payload_bytes + MESSAGE_MARGIN;
            return Err(Invalid::new("max_message_bytes", format!("must be at least {least}, is {max_message_bytes}")));
        }
        if hello.capacity == 0 || hello.capacity > MAX_CAPACITY {
            return Err(Invalid::new("capacity", format!("must be 1 to {MAX_CAPACITY}, is {}", hello.capacity)));
        }
        checked_text("build", &hello.build, MAX_NAME_CHARS)?;
        let queues = names("queues", &hello.queues, MAX_SESSION_QUEUES, QueueName::new)?;
        let mut kinds = names("kinds", &hello.kinds, MAX_SESSION_KINDS, KindName::new)?;
        kinds.sort_unstable();
        Ok(Self {
            held: listed("leases", hello.leases.into_iter().map(|lease| (lease.job_id, lease.token)))?,
            wants: Wants { queues: queues.clone(), kinds: kinds.clone() },
            hello: Hello {
                id: SessionId::try_from(&hello.session_id[..])?,
                name: WorkerName::new(&hello.worker_name)?,
                build: hello.build,
                queues,
                kinds,
                capacity: hello.capacity,
            },
            max_message_bytes,
        })
    }
}

fn names<N: PartialEq>(
    field: &str,
    names: &[String],
    max: usize,
    check: impl Fn(&str) -> Result<N, Invalid>,
) -> Result<Vec<N>, Invalid> {
    if names.is_empty() || names.len() > max {
        return Err(Invalid::new(field, format!("must have 1 to {max} entries, has {}", names.len())));
    }
    let mut checked = Vec::with_capacity(names.len());
    for (at, name) in names.iter().enumerate() {
        let name = check(name).map_err(|invalid| Invalid::new(format!("{field}[{at}]"), invalid.problem))?;
        if checked.contains(&name) {
            return Err(Invalid::new(format!("{field}[{at}]"), "is there twice"));
        }
        checked.push(name);
    }
    Ok(checked)
}

/// Leases as a worker lists them: at most as many as it may hold.
pub fn listed(field: &str, leases: impl Iterator<Item = (i64, i64)>) -> Result<HashSet<(JobId, Token)>, Invalid> {
    let mut listed = HashSet::new();
    for (at, (job, token)) in leases.enumerate() {
        if at >= MAX_CAPACITY as usize {
            return Err(Invalid::new(field, format!("has more than {MAX_CAPACITY} entries")));
        }
        let within = |invalid: Invalid| invalid.within(&format!("{field}[{at}]"));
        listed.insert((JobId::try_from(job).map_err(within)?, Token::try_from(token).map_err(within)?));
    }
    Ok(listed)
}
