//! Callers that come at the same time.

use effect_guard::{Applied, GuardError, apply_once};
use sqlx::PgPool;
use tokio::task::JoinSet;

use crate::schema::{effects, guards, make_effect, with_schema};

const CALLERS: i64 = 50;

async fn handle(pool: PgPool, token: i64) -> Result<Applied, GuardError> {
    let mut tx = pool.begin().await?;
    let applied = apply_once(&mut tx, "order/1", token).await?;
    if applied == Applied::First {
        make_effect(&mut tx, "order/1", token).await;
    }
    tx.commit().await?;
    Ok(applied)
}

/// Runs a caller per token at once and counts (first, already, stale).
async fn race(pool: &PgPool, tokens: impl Iterator<Item = i64>) -> (usize, usize, usize) {
    let mut callers: JoinSet<_> = tokens.map(|token| handle(pool.clone(), token)).collect();
    let mut counts = (0, 0, 0);
    while let Some(outcome) = callers.join_next().await {
        match outcome.expect("no panic") {
            Ok(Applied::First) => counts.0 += 1,
            Ok(Applied::Already) => counts.1 += 1,
            Err(GuardError::Stale { .. }) => counts.2 += 1,
            Err(error) => panic!("{error:?}"),
        }
    }
    counts
}

#[tokio::test]
async fn one_of_fifty_concurrent_callers_is_first() {
    with_schema(async |pool| {
        assert_eq!(race(&pool, (0..CALLERS).map(|_| 10)).await, (1, 49, 0));
        assert_eq!(effects(&pool).await, 1);
    })
    .await;
}

#[tokio::test]
async fn one_of_fifty_concurrent_leases_is_first_and_the_newest_is_remembered() {
    with_schema(async |pool| {
        let (first, already, stale) = race(&pool, 1..=CALLERS).await;
        assert_eq!((first, first + already + stale), (1, 50));
        assert_eq!(effects(&pool).await, 1);
        assert_eq!(guards(&pool).await, [("order/1".to_owned(), CALLERS)]);
    })
    .await;
}

/// Waits until someone waits for the transaction of backend `pid`.
async fn someone_waits_for(pool: &PgPool, pid: i32) {
    let waiting = "select exists (select from pg_stat_activity where $1 = any(pg_blocking_pids(pid)))";
    while !sqlx::query_scalar::<_, bool>(waiting).bind(pid).fetch_one(pool).await.expect("reads") {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn second_caller_waits_for_the_first_and_takes_over_after_its_rollback() {
    with_schema(async |pool| {
        let mut tx = pool.begin().await.expect("begins");
        assert_eq!(apply_once(&mut tx, "order/1", 10).await.expect("first"), Applied::First);
        let pid = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut *tx).await.expect("a pid");
        let second = tokio::spawn(handle(pool.clone(), 11));
        someone_waits_for(&pool, pid).await;
        tx.rollback().await.expect("rolls back");

        assert_eq!(second.await.expect("no panic").expect("not stale"), Applied::First);
        assert_eq!(guards(&pool).await, [("order/1".to_owned(), 11)]);
    })
    .await;
}

#[tokio::test]
async fn row_that_was_found_cannot_be_removed_before_the_caller_ends() {
    with_schema(async |pool| {
        assert_eq!(handle(pool.clone(), 10).await.expect("not stale"), Applied::First);
        let mut tx = pool.begin().await.expect("begins");
        assert_eq!(apply_once(&mut tx, "order/1", 10).await.expect("not stale"), Applied::Already);
        let mut other = pool.begin().await.expect("begins");
        sqlx::query("set local lock_timeout = '50ms'").execute(&mut *other).await.expect("sets");
        let removal = sqlx::query("delete from effect_guard").execute(&mut *other).await;
        let error = removal.expect_err("the row is locked").into_database_error().expect("by the database");
        assert_eq!(error.code().as_deref(), Some("55P03"));
    })
    .await;
}

#[tokio::test]
async fn loser_of_a_race_under_repeatable_read_is_told_to_begin_again() {
    with_schema(async |pool| {
        let mut tx = pool.begin().await.expect("begins");
        sqlx::query("set transaction isolation level repeatable read").execute(&mut *tx).await.expect("sets");
        sqlx::query("select 1").execute(&mut *tx).await.expect("takes its snapshot");
        assert_eq!(handle(pool.clone(), 10).await.expect("not stale"), Applied::First);

        let Err(GuardError::Database(error)) = apply_once(&mut tx, "order/1", 11).await else {
            panic!("a snapshot from before the commit must not decide");
        };
        assert_eq!(error.into_database_error().expect("by the database").code().as_deref(), Some("40001"));
    })
    .await;
}
