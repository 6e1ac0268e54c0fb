//! Hints between schedulers: they arrive, they may be lost, and looking finds what they would have told.

use std::time::Duration;

use queue_store::{Hint, HintListener, Lane, notify};
use testbed::db_test;

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn hint_of_many_lanes_reaches_another_scheduler() {
    db_test(async |db| {
        let (one, other) = (db.another_store(), db.another_store());
        let mut listener = HintListener::open(&other).await.expect("listens");
        let lane = |n| Lane { queue: i32::MAX - n, priority: 9, kind: i32::MAX - n };
        let hints: Vec<Hint> = (0..600).map(|n| Hint { lane: lane(n), from: i64::MAX - i64::from(n) }).collect();
        let mut conn = one.enqueue().await.expect("connects");
        notify(&mut conn, &hints).await.expect("tells");
        let mut heard = Vec::new();
        while heard.len() < hints.len() {
            let hint = tokio::time::timeout(SOON, listener.next()).await.expect("in time");
            heard.extend(hint.expect("receives").expect("not lost"));
        }
        assert_eq!(heard, hints);
    })
    .await;
}

#[tokio::test]
async fn listener_that_lost_its_connection_says_so() {
    db_test(async |db| {
        let mut listener = HintListener::open(db.store()).await.expect("listens");
        db.number(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity
            where datname = current_database() and query ilike 'listen%'",
        )
        .await;
        let lost = tokio::time::timeout(SOON, listener.next()).await.expect("in time");
        assert!(matches!(lost, Ok(None) | Err(_)), "{lost:?}");
    })
    .await;
}
