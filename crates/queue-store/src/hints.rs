//! Hints that lanes hold ready jobs: from other schedulers by `NOTIFY`, and by looking. Never a condition of correctness.

use sqlx::PgConnection;
use sqlx::postgres::PgListener;

use crate::{Lane, Store, StoreError};

const CHANNEL: &str = "fencepost_ready";
/// `NOTIFY` carries less than 8,000 bytes; a lane needs at most 26.
const LANES_PER_HINT: usize = 256;

/// Tells all schedulers that lanes got ready jobs. A statement of its own, never part of a transition: each commit that
/// notifies takes a lock of the whole database.
pub async fn notify(conn: &mut PgConnection, lanes: &[Lane]) -> Result<(), StoreError> {
    for lanes in lanes.chunks(LANES_PER_HINT) {
        sqlx::query!("select pg_notify($1, $2)", CHANNEL, text(lanes)).execute(&mut *conn).await?;
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
    pub async fn next(&mut self) -> Result<Option<Vec<Lane>>, StoreError> {
        Ok(self.0.try_recv().await?.map(|hint| lanes(hint.payload())))
    }

    /// Asks the server for a sign of life. The caller bounds the wait: a connection that is silently cut never answers.
    pub async fn check(&mut self) -> Result<(), StoreError> {
        sqlx::query("-- check_listener\nselect 1").execute(&mut self.0).await?;
        Ok(())
    }
}

/// Of these lanes, those that hold a ready job at or above the given position. One statement.
pub async fn probe(conn: &mut PgConnection, lanes: &[(Lane, i64)]) -> Result<Vec<Lane>, StoreError> {
    let queues: Vec<i32> = lanes.iter().map(|(lane, _)| lane.queue).collect();
    let priorities: Vec<i16> = lanes.iter().map(|(lane, _)| lane.priority).collect();
    let kinds: Vec<i32> = lanes.iter().map(|(lane, _)| lane.kind).collect();
    let lows: Vec<i64> = lanes.iter().map(|(_, low)| *low).collect();
    let found = sqlx::query!(
        r#"-- probe
        select l.queue_id as "queue_id!", l.priority as "priority!", l.kind_id as "kind_id!"
        from unnest($1::integer[], $2::smallint[], $3::integer[], $4::bigint[]) l (queue_id, priority, kind_id, low)
        cross join lateral (
            select
            from fencepost.ready r
            where r.queue_id = l.queue_id and r.priority = l.priority and r.kind_id = l.kind_id and r.position >= l.low
            order by r.queue_id, r.priority, r.kind_id, r.position
            limit 1
        ) first"#,
        &queues,
        &priorities,
        &kinds,
        &lows
    )
    .fetch_all(conn)
    .await?;
    Ok(found.into_iter().map(|row| Lane { queue: row.queue_id, priority: row.priority, kind: row.kind_id }).collect())
}

fn text(lanes: &[Lane]) -> String {
    let lane = |lane: &Lane| format!("{}.{}.{}", lane.queue, lane.priority, lane.kind);
    lanes.iter().map(lane).collect::<Vec<_>>().join(",")
}

/// Reads a hint; what is not one of ours is passed over.
fn lanes(hint: &str) -> Vec<Lane> {
    let lane = |text: &str| {
        let mut numbers = text.split('.');
        let lane = Lane {
            queue: numbers.next()?.parse().ok()?,
            priority: numbers.next()?.parse().ok()?,
            kind: numbers.next()?.parse().ok()?,
        };
        numbers.next().is_none().then_some(lane)
    };
    hint.split(',').take(LANES_PER_HINT).filter_map(lane).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_reads_back_as_it_was_written_and_noise_is_passed_over() {
        let some = [Lane { queue: 1, priority: 9, kind: 3 }, Lane { queue: i32::MAX, priority: 0, kind: 7 }];
        assert_eq!(lanes(&text(&some)), some);
        assert_eq!(lanes("1.2,x.y.z,1.2.3.4,,5.4.3"), [Lane { queue: 5, priority: 4, kind: 3 }]);
    }
}
