//! Bounded waiting for what another process does.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Between two looks. Short against every bound, long against the cost of a query.
const PAUSE: Duration = Duration::from_millis(10);

/// Looks until `condition` holds, and panics with `what` if it does not within `timeout`.
///
/// For conditions across processes only, where there is no signal to wait for.
pub async fn eventually(timeout: Duration, what: &str, condition: impl AsyncFnMut() -> bool) {
    assert!(holds_within(timeout, condition).await, "not within {timeout:?}: {what}");
}

/// Looks until `condition` holds; tells whether it did in time.
pub(crate) async fn holds_within(timeout: Duration, mut condition: impl AsyncFnMut() -> bool) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        if condition().await {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        sleep(PAUSE).await;
    }
}
