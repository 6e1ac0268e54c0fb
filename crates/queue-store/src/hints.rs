//! Hints of schedulers to each other that lanes hold ready jobs. Never a condition of correctness.

use sqlx::PgConnection;
use sqlx::postgres::PgListener;

use crate::{Lane, Store, StoreError};

const CHANNEL: &str = "fencepost_ready";
/// Hints of one `NOTIFY`. It carries less than 8,000 bytes; a hint needs at most 46.
const HINTS_PER_NOTIFY: usize = 160;

/// A lane got ready jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hint {
    /// The lane.
    pub lane: Lane,
    /// The lowest position of those jobs; 0 if it is not known.
    pub from: i64,
}

impl Hint {
    /// Jobs at positions that are not known.
    pub fn anywhere(lane: Lane) -> Self {
        Self { lane, from: 0 }
    }
}

/// Tells all schedulers that lanes got ready jobs. A statement of its own, never part of a transition: each commit that
/// notifies takes a lock of the whole database.
pub async fn notify(conn: &mut PgConnection, hints: &[Hint]) -> Result<(), StoreError> {
    for hints in hints.chunks(HINTS_PER_NOTIFY) {
        sqlx::query!("select pg_notify($1, $2)", CHANNEL, text(hints)).execute(&mut *conn).await?;
    }
    Ok(())
}

/// Receives the hints of other schedulers, on a connection of its own.
#[derive(Debug)]
pub struct HintListener(PgListener);

impl HintListener {
    /// Starts to listen.
    pub async fn open(store: &Store) -> Result<Self, StoreError> {
        let mut listener = PgListener::connect_with(store.vital_pool()).await?;
        // A lost connection is an error here, so that the caller looks for what it may have missed.
        listener.eager_reconnect(false);
        listener.listen(CHANNEL).await?;
        Ok(Self(listener))
    }

    /// Waits for the next hint. `None`: the connection was lost and hints may have been missed.
    pub async fn next(&mut self) -> Result<Option<Vec<Hint>>, StoreError> {
        Ok(self.0.try_recv().await?.map(|heard| hints(heard.payload())))
    }

    /// Asks the server for a sign of life. The caller bounds the wait: a connection that is silently cut never answers.
    pub async fn check(&mut self) -> Result<(), StoreError> {
        sqlx::query("-- check_listener\nselect 1").execute(&mut self.0).await?;
        Ok(())
    }
}

fn text(hints: &[Hint]) -> String {
    let hint = |Hint { lane, from }: &Hint| format!("{}.{}.{}.{from}", lane.queue, lane.priority, lane.kind);
    hints.iter().map(hint).collect::<Vec<_>>().join(",")
}

/// Reads hints; what is not one of ours is passed over.
fn hints(text: &str) -> Vec<Hint> {
    let hint = |text: &str| {
        let mut numbers = text.split('.');
        let lane = Lane {
            queue: numbers.next()?.parse().ok()?,
            priority: numbers.next()?.parse().ok()?,
            kind: numbers.next()?.parse().ok()?,
        };
        let from = numbers.next()?.parse().ok()?;
        numbers.next().is_none().then_some(Hint { lane, from })
    };
    text.split(',').take(HINTS_PER_NOTIFY).filter_map(hint).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_reads_back_as_it_was_written_and_noise_is_passed_over() {
        let some = [
            Hint { lane: Lane { queue: 1, priority: 9, kind: 3 }, from: i64::MAX },
            Hint::anywhere(Lane { queue: i32::MAX, priority: 0, kind: i32::MAX }),
        ];
        assert_eq!(hints(&text(&some)), some);
        assert_eq!(hints("1.2.3,x.y.z.7,1.2.3.4.5,,5.4.3.2").len(), 1);
        assert!(text(&[some[0]; HINTS_PER_NOTIFY]).len() < 8_000);
    }
}
