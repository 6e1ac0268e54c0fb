//! Errors as gRPC statuses, in one place.

use queue_core::Invalid;
use queue_store::StoreError;
use tonic::Status;

use crate::cause::cause;

/// An input that is refused.
pub fn invalid(error: &Invalid) -> Status {
    Status::invalid_argument(error.to_string())
}

/// A session that is dead: everything it held is lost.
pub fn expired() -> Status {
    Status::failed_precondition("the session has expired: start a new one")
}

/// A session that lives on over another stream, here or elsewhere.
pub fn superseded() -> Status {
    Status::aborted("another stream has taken the session over")
}

/// A storage that did not do what it was asked to. What the database said stays here: it may hold data of jobs.
pub fn store(error: &StoreError) -> Status {
    match error {
        StoreError::Unavailable(_) => Status::unavailable(
            "the database is not available; whether the call took effect is unknown, repeat it if it has idempotency keys",
        ),
        StoreError::Data(_) => Status::invalid_argument("the database refused the data"),
        StoreError::Full(what) => Status::resource_exhausted(*what),
        StoreError::Schema(what) => Status::failed_precondition(what.clone()),
        StoreError::Other(_) => {
            tracing::error!(
                error = cause(error),
                "a statement failed; this is a fault of the program or of the installation"
            );
            Status::internal("a statement failed; the scheduler's log says more")
        }
    }
}
