//! What is told of jobs that are dead and of sessions that have expired, whoever found out.

use queue_store::{Death, ExpiredSession, Registry};
use tokio::time::Instant;

use crate::lines::Lines;
use crate::metrics;

static JOBS: Lines = Lines::new();
static SESSIONS: Lines = Lines::new();

/// Jobs are dead, and that is committed.
pub fn dead(registry: &Registry, deaths: &[Death]) {
    for death in deaths {
        metrics::died(death.reason);
    }
    let line = |death: &Death| {
        let queue =
            registry.queue_name(death.lane.queue).map_or_else(|| death.lane.queue.to_string(), |name| name.to_string());
        let kind =
            registry.kind_name(death.lane.kind).map_or_else(|| death.lane.kind.to_string(), |name| name.to_string());
        tracing::warn!(
            job.id = %death.job,
            job.queue = queue,
            job.kind = kind,
            lease.token = %death.token,
            reason = death.reason.as_str(),
            "job is dead"
        );
    };
    JOBS.tell(Instant::now(), deaths.iter(), line, |jobs| tracing::warn!(jobs, "more jobs are dead"));
}

/// Sessions have expired, and that is committed. Their leases are taken back next.
pub fn expired<'a>(sessions: impl ExactSizeIterator<Item = &'a ExpiredSession>) {
    let line = |session: &ExpiredSession| {
        tracing::info!(
            session.id = %session.id,
            session.no = session.session_no,
            worker = session.worker,
            leases = session.leases,
            "session expired"
        );
    };
    let count = |sessions| tracing::info!(sessions, "more sessions expired");
    SESSIONS.tell(Instant::now(), sessions, line, count);
}
