//! One committed effect per key.

use effect_guard::{Applied, DDL, GuardError, MAX_KEY_CHARS, apply_once};
use sqlx::PgPool;

use crate::schema::{effects, guards, make_effect, with_schema};

async fn handle(pool: &PgPool, key: &str, token: i64) -> Applied {
    let mut tx = pool.begin().await.expect("begins");
    let applied = apply_once(&mut tx, key, token).await.expect("is not refused");
    if applied == Applied::First {
        make_effect(&mut tx, key, token).await;
    }
    tx.commit().await.expect("commits");
    applied
}

#[tokio::test]
async fn repeated_delivery_leaves_one_committed_effect_per_key() {
    with_schema(async |pool| {
        assert_eq!(handle(&pool, "order/1", 10).await, Applied::First);
        assert_eq!(handle(&pool, "order/1", 10).await, Applied::Already, "the same lease again, after a lost answer");
        assert_eq!(handle(&pool, "order/1", 11).await, Applied::Already, "the next lease");
        assert_eq!(handle(&pool, "order/2", 11).await, Applied::First, "another key");
        assert_eq!(effects(&pool).await, 2);
    })
    .await;
}

#[tokio::test]
async fn rollback_leaves_no_trace() {
    with_schema(async |pool| {
        let mut tx = pool.begin().await.expect("begins");
        assert_eq!(apply_once(&mut tx, "order/1", 10).await.expect("first"), Applied::First);
        make_effect(&mut tx, "order/1", 10).await;
        tx.rollback().await.expect("rolls back");

        assert_eq!((effects(&pool).await, guards(&pool).await), (0, vec![]));
        assert_eq!(handle(&pool, "order/1", 9).await, Applied::First, "nothing remembers the newer token");
    })
    .await;
}

#[tokio::test]
async fn crash_before_commit_leaves_no_trace() {
    with_schema(async |pool| {
        let mut conn = pool.acquire().await.expect("connects").detach();
        let pid: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut conn).await.expect("a pid");
        sqlx::query("begin").execute(&mut conn).await.expect("begins");
        assert_eq!(apply_once(&mut conn, "order/1", 10).await.expect("first"), Applied::First);
        make_effect(&mut conn, "order/1", 10).await;
        sqlx::query("select pg_terminate_backend($1, 5000)").bind(pid).execute(&pool).await.expect("terminates");

        assert_eq!(handle(&pool, "order/1", 11).await, Applied::First);
        assert_eq!(effects(&pool).await, 1);
    })
    .await;
}

#[tokio::test]
async fn second_claim_in_one_transaction_is_no_first() {
    with_schema(async |pool| {
        let mut tx = pool.begin().await.expect("begins");
        assert_eq!(apply_once(&mut tx, "order/1", 10).await.expect("first"), Applied::First);
        assert_eq!(apply_once(&mut tx, "order/1", 10).await.expect("repeat"), Applied::Already);
    })
    .await;
}

#[tokio::test]
async fn what_no_lease_can_have_is_refused_and_spares_the_transaction() {
    with_schema(async |pool| {
        let mut tx = pool.begin().await.expect("begins");
        for key in ["", "nul\0", &"x".repeat(MAX_KEY_CHARS + 1)] {
            assert!(matches!(apply_once(&mut tx, key, 1).await, Err(GuardError::InvalidKey)), "{key:?}");
        }
        for token in [0, -1, i64::MIN] {
            assert!(matches!(apply_once(&mut tx, "order/1", token).await, Err(GuardError::InvalidToken(_))), "{token}");
        }
        let longest = "x".repeat(MAX_KEY_CHARS);
        assert_eq!(apply_once(&mut tx, &longest, i64::MAX).await.expect("fits"), Applied::First);
    })
    .await;
}

#[tokio::test]
async fn ddl_may_be_applied_again() {
    with_schema(async |pool| {
        assert_eq!(handle(&pool, "order/1", 10).await, Applied::First);
        sqlx::raw_sql(DDL).execute(&pool).await.expect("applies again");
        assert_eq!(guards(&pool).await, [("order/1".to_owned(), 10)]);
    })
    .await;
}
