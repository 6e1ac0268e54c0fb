//! Handlers, and what they return.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use queue_core::{Failure, Outcome, Success};

use crate::Context;

/// What a handler that did not succeed asks for.
///
/// Any [`std::error::Error`] becomes a retryable failure with the code `error` through the `?` operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandlerError {
    /// The attempt failed.
    Failed(Failure),
    /// Call again after so long; uses no attempt.
    Snooze(Duration),
}

impl HandlerError {
    /// A failure that another attempt may help. Texts are cut to what is stored.
    pub fn retryable(code: &str, message: impl AsRef<str>) -> Self {
        Self::Failed(Failure::new(code, message.as_ref(), true))
    }

    /// A failure that no other attempt can help: the job is dead at once.
    pub fn permanent(code: &str, message: impl AsRef<str>) -> Self {
        Self::Failed(Failure::new(code, message.as_ref(), false))
    }

    /// Asks to be called again after so long, at most 30 days.
    pub fn snooze(after: Duration) -> Self {
        Self::Snooze(after)
    }

    /// Sets when a failure is tried again, at most 30 days from now; wins over the job's policy.
    #[must_use]
    pub fn retry_after(self, after: Duration) -> Self {
        match self {
            Self::Failed(failure) => Self::Failed(Failure { retry_after: Some(after), ..failure }),
            Self::Snooze(_) => Self::Snooze(after),
        }
    }
}

impl<E: std::error::Error> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self::retryable("error", error.to_string())
    }
}

impl From<HandlerError> for Outcome {
    fn from(error: HandlerError) -> Self {
        match error {
            HandlerError::Failed(failure) => Self::Failed(failure),
            HandlerError::Snooze(after) => Self::Snoozed(after),
        }
    }
}

pub(crate) type HandlerFuture = Pin<Box<dyn Future<Output = Result<Success, HandlerError>> + Send>>;
pub(crate) type BoxedHandler = Arc<dyn Fn(Context) -> HandlerFuture + Send + Sync>;

/// Handlers by kind.
pub(crate) type Handlers = HashMap<String, BoxedHandler>;

pub(crate) fn boxed<F, R>(handler: F) -> BoxedHandler
where
    F: Fn(Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Success, HandlerError>> + Send + 'static,
{
    Arc::new(move |context| Box::pin(handler(context)))
}
