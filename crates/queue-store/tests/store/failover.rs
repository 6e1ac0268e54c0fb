//! A new timeline: the token sequence may have stepped back, so it is skipped ahead before the first claim.

use testbed::db_test;
use tokio::task::JoinSet;

use crate::fixture::Desk;

const LOST: i64 = 1_000_000_000;
const SEQUENCE: &str = "select last_value from fencepost.token_seq";

#[tokio::test]
async fn first_claim_on_a_new_timeline_has_a_token_far_above_all_before() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(2).await;
        let owner = desk.session().await;
        let before = desk.claim_one(owner).await;
        // As a standby that was promoted without the end of the log would have it.
        db.run("update fencepost.installation set timeline = 'FFFFFFFF'").await;
        let other = Desk::on(db, db.another_store()).await;
        other.registry.reload(&mut other.store.enqueue().await.expect("connects")).await.expect("reads");
        let after = other.claim_one(owner).await;
        assert!(after.token.get() > before.token.get() + LOST);
        let known = "select count(*) from fencepost.installation where timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)";
        assert_eq!(db.number(known).await, 1);
    })
    .await;
}

#[tokio::test]
async fn connections_that_notice_it_at_once_skip_once() {
    db_test(async |db| {
        db.store().enqueue().await.expect("connects");
        db.run("update fencepost.installation set timeline = 'FFFFFFFF'").await;
        let before = db.number(SEQUENCE).await;
        let store = db.another_store();
        let mut connecting = JoinSet::new();
        for n in 0..8 {
            let store = store.clone();
            // Enqueues draw tokens as well, where a slot is free.
            let connect = async move || if n % 2 == 0 { store.hot().await } else { store.enqueue().await };
            connecting.spawn(async move { connect().await.expect("connects") });
        }
        drop(connecting.join_all().await);
        assert_eq!(db.number(SEQUENCE).await, before + LOST);
    })
    .await;
}

#[tokio::test]
async fn new_connections_on_the_same_timeline_skip_nothing() {
    db_test(async |db| {
        db.store().hot().await.expect("connects");
        let before = db.number(SEQUENCE).await;
        db.another_store().hot().await.expect("connects");
        assert_eq!(db.number(SEQUENCE).await, before);
    })
    .await;
}
