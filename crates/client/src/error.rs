//! What can go wrong with a call, told apart as far as a caller would act differently.

use queue_core::Invalid;
use tonic::{Code, Status};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The options cannot work; nothing was sent.
    #[error("{0}")]
    Options(String),
    /// Refused here, before it was sent.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Refused by the scheduler: the message names the field. A repeat will be refused again.
    #[error("refused: {0}")]
    Refused(String),
    /// The idempotency key belongs to a job with another queue, kind or payload.
    #[error("conflict: {0}")]
    Conflict(String),
    /// There is no such job.
    #[error("not found: {0}")]
    NotFound(String),
    /// A bound of the installation is reached or it is overloaded; try again later.
    #[error("over capacity: {0}")]
    Overloaded(String),
    /// The token or certificate is missing or not accepted.
    #[error("not allowed: {0}")]
    Denied(String),
    /// The fencing token is stale: somebody else holds the lease now.
    #[error("stale: {0}")]
    Stale(String),
    /// No scheduler could do it, also not when asked again. It was not done.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// A job without an idempotency key was sent and the answer was lost: it may or may not have been enqueued.
    #[error("it is not known whether the job was enqueued, and it has no idempotency key to ask again with: {0}")]
    OutcomeUnknown(String),
    /// Anything else, such as an answer that makes no sense.
    #[error("{code}: {message}", code = .0.code(), message = .0.message())]
    Other(Box<Status>),
}

impl Error {
    /// An error of one job of a batch, which comes as number and text.
    pub(crate) fn from_code(code: i32, message: String) -> Self {
        Status::new(Code::from_i32(code), message).into()
    }

    /// An answer that breaks the protocol.
    pub(crate) fn nonsense(what: &str) -> Self {
        Status::internal(format!("the scheduler's answer makes no sense: {what}")).into()
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let message = status.message().to_owned();
        match status.code() {
            Code::InvalidArgument | Code::OutOfRange => Self::Refused(message),
            Code::AlreadyExists => Self::Conflict(message),
            Code::NotFound => Self::NotFound(message),
            Code::ResourceExhausted => Self::Overloaded(message),
            Code::Unauthenticated | Code::PermissionDenied => Self::Denied(message),
            Code::FailedPrecondition | Code::Aborted => Self::Stale(message),
            Code::Unavailable | Code::DeadlineExceeded => Self::Unavailable(message),
            _ => Self::Other(Box::new(status)),
        }
    }
}
