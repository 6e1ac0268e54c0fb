//! What the database said, as people read it.

use queue_store::StoreError;

/// An error with its cause, each said once. The chain of sources says what a server said twice, with a line number in the
/// server's own source.
pub fn cause(error: &StoreError) -> String {
    let (StoreError::Unavailable(inner) | StoreError::Data(inner) | StoreError::Other(inner)) = error else {
        return error.to_string();
    };
    match inner.as_database_error() {
        Some(said) => format!("{error}: {} ({})", said.message(), said.code().unwrap_or_default()),
        None => format!("{error}: {inner}"),
    }
}
