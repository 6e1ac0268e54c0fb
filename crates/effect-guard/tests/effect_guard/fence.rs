//! A worker that lost its lease is told so.

use effect_guard::{Applied, GuardError, apply_once};

use crate::schema::{effects, guards, make_effect, with_schema};

#[tokio::test]
async fn older_token_is_refused() {
    with_schema(async |pool| {
        let mut tx = pool.begin().await.expect("begins");
        assert_eq!(apply_once(&mut tx, "order/1", 10).await.expect("first"), Applied::First);
        make_effect(&mut tx, "order/1", 10).await;
        tx.commit().await.expect("commits");

        let mut tx = pool.begin().await.expect("begins");
        let refused = apply_once(&mut tx, "order/1", 9).await;
        assert!(matches!(refused, Err(GuardError::Stale { token: 9, seen: 10 })), "{refused:?}");
        assert_eq!(apply_once(&mut tx, "order/2", 9).await.expect("the transaction is usable"), Applied::First);
        tx.rollback().await.expect("rolls back");
        assert_eq!(effects(&pool).await, 1);
    })
    .await;
}

#[tokio::test]
async fn newer_token_is_remembered_and_fences_the_one_that_applied() {
    with_schema(async |pool| {
        for (token, expected) in [(10, Applied::First), (12, Applied::Already)] {
            let mut tx = pool.begin().await.expect("begins");
            assert_eq!(apply_once(&mut tx, "order/1", token).await.expect("not stale"), expected);
            tx.commit().await.expect("commits");
        }

        let mut tx = pool.begin().await.expect("begins");
        let refused = apply_once(&mut tx, "order/1", 10).await;
        assert!(matches!(refused, Err(GuardError::Stale { token: 10, seen: 12 })), "{refused:?}");
        assert_eq!(guards(&pool).await, [("order/1".to_owned(), 12)]);
    })
    .await;
}

#[tokio::test]
async fn newer_token_that_rolls_back_is_forgotten() {
    with_schema(async |pool| {
        for (token, commits) in [(10, true), (12, false)] {
            let mut tx = pool.begin().await.expect("begins");
            let _ = apply_once(&mut tx, "order/1", token).await.expect("not stale");
            if commits {
                tx.commit().await.expect("commits");
            }
        }

        let mut tx = pool.begin().await.expect("begins");
        assert_eq!(apply_once(&mut tx, "order/1", 10).await.expect("not stale"), Applied::Already);
    })
    .await;
}
