//! Hints between schedulers: they arrive, they may be lost, and looking finds what they would have told.

use std::time::Duration;

use queue_store::{Hint, HintListener, Lane, notify, probe};
use testbed::db_test;

use crate::fixture::{Desk, job, job_of};

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

#[tokio::test]
async fn looking_finds_the_lanes_that_hold_something_above_their_marks() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.enqueue(&[job("p"), job_of("fax", "send", "p")]).await;
        let empty = desk.lane(&job_of("mail", "nothing", "p")).await;
        let (mail, fax) = (desk.lane(&job("p")).await, desk.lane(&job_of("fax", "send", "p")).await);
        let mut conn = desk.store.hot().await.expect("connects");
        let found = probe(&mut conn, &[(mail, 0), (empty, 0), (fax, 0)]).await.expect("looks");
        assert_eq!(found, [mail, fax]);
        assert_eq!(probe(&mut conn, &[(mail, i64::MAX), (fax, 0)]).await.expect("looks"), [fax]);
        assert!(probe(&mut conn, &[]).await.expect("looks").is_empty());
    })
    .await;
}
