//! A database each, and none left.

use std::sync::Mutex;
use std::time::Duration;

use testbed::{PATIENCE, TestDatabase, db_test};

async fn databases_named(db: &TestDatabase, url: &str) -> i64 {
    let name = url.rsplit('/').next().and_then(|rest| rest.split('?').next()).expect("a URL ends in its database");
    sqlx::query_scalar("select count(*) from pg_database where datname = $1")
        .bind(name)
        .fetch_one(db.pool())
        .await
        .expect("counts")
}

#[tokio::test]
async fn databases_made_at_the_same_time_are_different_and_have_the_schema() {
    let (a, b, c, d) = tokio::join!(TestDatabase::new(), TestDatabase::new(), TestDatabase::new(), TestDatabase::new());
    let made = [a, b, c, d];
    let mut urls = Vec::new();
    for db in &made {
        assert_eq!(db.number("select count(*) from fencepost.installation").await, 1);
        urls.push(db.url());
    }
    urls.sort();
    urls.dedup();
    assert_eq!(urls.len(), made.len());
}

#[tokio::test]
async fn database_of_a_test_that_panics_is_dropped() {
    let url = std::sync::Arc::new(Mutex::new(String::new()));
    let seen = url.clone();
    let failed = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(db_test(async |db| {
            *seen.lock().expect("no panic yet") = db.url();
            db.number("select 1::bigint").await;
            panic!("as a test does that fails");
        }));
    });
    let failed = tokio::task::spawn_blocking(|| failed.join().is_err());
    assert!(tokio::time::timeout(PATIENCE, failed).await.expect("in time").expect("no panic"));
    let url = url.lock().expect("no panic").clone();
    db_test(async |db| assert_eq!(databases_named(db, &url).await, 0)).await;
}

#[tokio::test]
async fn violated_invariant_fails_the_test() {
    let db = TestDatabase::new().await;
    db.run("insert into fencepost.tally (queue_id, ready) values (1, 1)").await;
    assert_eq!(db.audit().await.len(), 1);
    let audited = tokio::time::timeout(Duration::from_secs(10), tokio::spawn(async move { db.check().await }));
    assert!(audited.await.expect("in time").is_err());
}
