//! Sets a worker up, checking everything before anything is connected.

use std::time::Duration;

use client::ConnectOptions;
use queue_core::{
    Invalid, KindName, MAX_CAPACITY, MAX_NAME_CHARS, MAX_SESSION_KINDS, MAX_SESSION_QUEUES, QueueName, Success,
    WorkerName, checked_text,
};

use crate::handler::{Handlers, boxed};
use crate::settings::{
    DEFAULT_MAX_MESSAGE_BYTES, MAX_DRAIN_GRACE, MAX_MAX_MESSAGE_BYTES, MIN_MAX_MESSAGE_BYTES, Settings,
};
use crate::timing::{DEFAULT_CANCEL_GRACE, DEFAULT_DRAIN_GRACE};
use crate::{Context, Error, HandlerError, Timing, Worker};

/// Jobs that run at once, unless set otherwise.
pub const DEFAULT_CONCURRENCY: u32 = 8;

/// Sets up a [`Worker`].
pub struct WorkerBuilder {
    connect: ConnectOptions,
    name: Option<String>,
    queues: Vec<String>,
    handlers: Handlers,
    twice: Option<String>,
    concurrency: u32,
    drain_grace: Duration,
    cancel_grace: Duration,
    timing: Timing,
    max_message_bytes: usize,
    build: String,
}

impl Default for WorkerBuilder {
    fn default() -> Self {
        Self {
            connect: ConnectOptions::new(["http://127.0.0.1:7878"]),
            name: None,
            queues: Vec::new(),
            handlers: Handlers::new(),
            twice: None,
            concurrency: DEFAULT_CONCURRENCY,
            drain_grace: DEFAULT_DRAIN_GRACE,
            cancel_grace: DEFAULT_CANCEL_GRACE,
            timing: Timing::default(),
            max_message_bytes: DEFAULT_MAX_MESSAGE_BYTES,
            build: String::new(),
        }
    }
}

impl WorkerBuilder {
    /// Which schedulers to work for. Default: `http://127.0.0.1:7878`.
    #[must_use]
    pub fn connect(self, connect: ConnectOptions) -> Self {
        Self { connect, ..self }
    }

    /// Name for people; identifies nothing. Default: host and process.
    #[must_use]
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Queues to work on, the most important first. 1 to 64.
    #[must_use]
    pub fn queues<Q: Into<String>>(self, queues: impl IntoIterator<Item = Q>) -> Self {
        Self { queues: queues.into_iter().map(Into::into).collect(), ..self }
    }

    /// Runs jobs of this kind. Jobs of kinds without a handler are never given to this worker. 1 to 256 kinds.
    #[must_use]
    pub fn handler<F, R>(mut self, kind: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Context) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Success, HandlerError>> + Send + 'static,
    {
        let kind = kind.into();
        if self.handlers.insert(kind.clone(), boxed(handler)).is_some() {
            self.twice = Some(kind);
        }
        self
    }

    /// Jobs that run at once, 1 to 10,000. Default [`DEFAULT_CONCURRENCY`].
    #[must_use]
    pub fn concurrency(self, concurrency: u32) -> Self {
        Self { concurrency, ..self }
    }

    /// How long running jobs may go on after the signal to stop. Default 25 s, at most a day.
    #[must_use]
    pub fn drain_grace(self, drain_grace: Duration) -> Self {
        Self { drain_grace, ..self }
    }

    /// How long a handler may take to return once its cancellation fired. Default 2 s.
    #[must_use]
    pub fn cancel_grace(self, cancel_grace: Duration) -> Self {
        Self { cancel_grace, ..self }
    }

    /// Intervals of the link. The defaults fit the protocol.
    #[must_use]
    pub fn timing(self, timing: Timing) -> Self {
        Self { timing, ..self }
    }

    /// Largest message that is accepted, at least 1 MiB above the largest payload. Default 4 MiB.
    #[must_use]
    pub fn max_message_bytes(self, max_message_bytes: usize) -> Self {
        Self { max_message_bytes, ..self }
    }

    /// Version of the program, for people. At most 128 characters.
    #[must_use]
    pub fn build_id(self, build: impl Into<String>) -> Self {
        Self { build: build.into(), ..self }
    }

    /// Checks everything.
    ///
    /// Errors: [`Error::Invalid`] names the setting, [`Error::Connect`].
    pub fn build(self) -> Result<Worker, Error> {
        let name = WorkerName::new(&self.name.unwrap_or_else(lifecycle::process_name))?;
        let queues = self.queues.iter().map(|queue| QueueName::new(queue)).collect::<Result<Vec<_>, _>>()?;
        if let Some(twice) =
            queues.iter().enumerate().find_map(|(at, queue)| queues[..at].contains(queue).then_some(queue))
        {
            return Err(Invalid::new("queues", format!("has {twice} twice")).into());
        }
        self.handlers.keys().try_for_each(|kind| KindName::new(kind).map(drop))?;
        if let Some(kind) = self.twice {
            return Err(Invalid::new("kinds", format!("has two handlers for {kind}")).into());
        }
        within("queues", queues.len(), 1, MAX_SESSION_QUEUES)?;
        within("kinds", self.handlers.len(), 1, MAX_SESSION_KINDS)?;
        within("concurrency", self.concurrency, 1, MAX_CAPACITY)?;
        within("max_message_bytes", self.max_message_bytes, MIN_MAX_MESSAGE_BYTES, MAX_MAX_MESSAGE_BYTES)?;
        if self.drain_grace > MAX_DRAIN_GRACE || self.cancel_grace > MAX_DRAIN_GRACE {
            return Err(Invalid::new("grace", "must be at most a day").into());
        }
        checked_text("build", &self.build, MAX_NAME_CHARS)?;
        self.connect.work_addresses()?;
        let settings = Settings {
            connect: self.connect,
            name,
            queues,
            concurrency: self.concurrency,
            drain_grace: self.drain_grace,
            cancel_grace: self.cancel_grace,
            timing: self.timing,
            max_message_bytes: self.max_message_bytes,
            build: self.build,
        };
        Ok(Worker::new(settings, self.handlers))
    }
}

fn within<N: Copy + PartialOrd + std::fmt::Display>(field: &str, value: N, min: N, max: N) -> Result<(), Invalid> {
    if value < min || value > max {
        return Err(Invalid::new(field, format!("must be {min} to {max}, is {value}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use queue_core::Success;

    use super::WorkerBuilder;
    use crate::{Context, Worker};

    fn builder() -> WorkerBuilder {
        Worker::builder().queues(["q"]).handler("k", |_: Context| async { Ok(Success::default()) })
    }

    #[test]
    fn settings_that_cannot_work_are_refused_by_name() {
        assert!(builder().build().is_ok());
        let wrong = [
            (Worker::builder().queues(["q"]), "kinds"),
            (builder().queues(Vec::<String>::new()), "queues"),
            (builder().queues(["a b"]), "queue"),
            (builder().queues(["a", "b", "a"]), "queues: has a twice"),
            (builder().concurrency(0), "concurrency"),
            (builder().name("no spaces"), "worker_name"),
            (builder().max_message_bytes(0), "max_message_bytes"),
            (builder().handler("k", |_: Context| async { Ok(Success::default()) }), "two handlers"),
        ];
        for (builder, field) in wrong {
            let error = builder.build().err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(field), "{field}: {error}");
        }
    }
}
