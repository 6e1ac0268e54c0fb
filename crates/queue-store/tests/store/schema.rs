//! The migrations, and what a program says to a schema that it does not know.

use std::time::Duration;

use queue_store::{StoreError, check_schema, migrate};
use sqlx::postgres::PgPoolOptions;
use testbed::{PATIENCE, TestDatabase, db_test};
use tokio::task::LocalSet;

/// An empty database in the place of the migrated one.
async fn empty(db: &TestDatabase) {
    db.run("drop schema fencepost cascade").await;
}

async fn checked(db: &TestDatabase) -> Result<(), String> {
    let mut conn = db.store().read().await.expect("connects");
    match check_schema(&mut conn).await {
        Ok(()) => Ok(()),
        Err(StoreError::Schema(text)) => Err(text),
        Err(other) => panic!("{other:?}"),
    }
}

async fn newest(db: &TestDatabase) -> i64 {
    db.number("select max(version) from fencepost.schema_migration").await
}

#[tokio::test]
async fn schema_applies_cleanly_and_again() {
    db_test(async |db| {
        empty(db).await;
        migrate(&db.url(), None).await.expect("applies to an empty database");
        let applied = db.number("select count(*) from fencepost.schema_migration").await;
        migrate(&db.url(), None).await.expect("applies again");
        assert_eq!(db.number("select count(*) from fencepost.schema_migration").await, applied);
        checked(db).await.expect("it is the schema of this program");
    })
    .await;
}

#[tokio::test]
async fn ten_that_migrate_at_once_all_succeed() {
    db_test(async |db| {
        empty(db).await;
        let url = db.url();
        let local = LocalSet::new();
        let started: Vec<_> = (0..10)
            .map(|_| {
                let url = url.clone();
                local.spawn_local(async move { migrate(&url, None).await })
            })
            .collect();
        local.await;
        for one in started {
            one.await.expect("no panic").expect("applies, or waits for the one that does");
        }
        checked(db).await.expect("complete");
        assert_eq!(db.number("select count(*) from fencepost.installation").await, 1);
    })
    .await;
}

#[tokio::test]
async fn schema_newer_than_the_program_is_refused_and_not_touched() {
    db_test(async |db| {
        db.run(
            "insert into fencepost.schema_migration (version, description, success, checksum, execution_time)
            values (9999, 'from the future', true, '\\x00', 0)",
        )
        .await;
        let Err(StoreError::Schema(text)) = migrate(&db.url(), None).await else { panic!("must refuse") };
        assert!(text.contains("9999") && text.contains("newer"), "{text}");
        let text = checked(db).await.expect_err("must refuse");
        assert!(text.contains("is at migration 9999") && text.contains("use a newer scheduler"), "{text}");
        db.run("delete from fencepost.schema_migration where version = 9999").await;
    })
    .await;
}

#[tokio::test]
async fn schema_older_than_the_program_is_refused_with_what_to_do() {
    db_test(async |db| {
        let newest = newest(db).await;
        db.run("delete from fencepost.schema_migration where version = (select max(version) from fencepost.schema_migration)")
            .await;
        let text = checked(db).await.expect_err("must refuse");
        assert!(text.contains(&format!("needs {newest}: run `scheduler migrate` first")), "{text}");
    })
    .await;
}

#[tokio::test]
async fn database_without_a_schema_is_refused_with_what_to_do() {
    db_test(async |db| {
        empty(db).await;
        let text = checked(db).await.expect_err("must refuse");
        assert!(text.contains("is at migration none") && text.contains("run `scheduler migrate` first"), "{text}");
        migrate(&db.url(), None).await.expect("applies");
    })
    .await;
}

#[tokio::test]
async fn migration_with_another_text_is_refused() {
    db_test(async |db| {
        db.run("update fencepost.schema_migration set checksum = '\\x00' where version = 1").await;
        let Err(StoreError::Schema(text)) = migrate(&db.url(), None).await else { panic!("must refuse") };
        assert!(text.contains("migration 1 was applied with another text"), "{text}");
    })
    .await;
}

#[tokio::test]
async fn bounds_are_set_on_every_connection() {
    db_test(async |db| {
        let store = db.store();
        for conn in [store.enqueue().await, store.hot().await, store.vital().await, store.read().await] {
            let mut conn = conn.expect("connects");
            for (name, bound) in
                [("statement_timeout", "10s"), ("lock_timeout", "5s"), ("idle_in_transaction_session_timeout", "10s")]
            {
                let set: String = sqlx::query_scalar("select current_setting($1)")
                    .bind(name)
                    .fetch_one(&mut *conn)
                    .await
                    .expect("reads");
                assert_eq!(set, bound, "{name}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn claims_that_hold_every_connection_leave_some_for_renewal() {
    db_test(async |db| {
        let store = db.store();
        let mut taken = Vec::new();
        for _ in 0..8 {
            taken.push(store.hot().await.expect("one of eight"));
        }
        let renewal = tokio::time::timeout(Duration::from_secs(5), store.vital()).await;
        renewal.expect("does not wait").expect("connects");
        drop(taken);
    })
    .await;
}

#[tokio::test]
async fn every_table_column_view_and_function_for_people_has_a_comment() {
    db_test(async |db| {
        let without: Vec<String> = sqlx::query_scalar(
            "select c.relname::text
            from pg_class c
            where c.relnamespace = 'fencepost'::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
                and c.relname <> 'schema_migration' and obj_description(c.oid, 'pg_class') is null",
        )
        .fetch_all(db.pool())
        .await
        .expect("reads");
        assert_eq!(without, Vec::<String>::new());
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_away_is_unavailable_and_told_apart() {
    let pool = PgPoolOptions::new()
        .acquire_timeout(Duration::from_secs(1))
        .connect_lazy("postgres://nobody@127.0.0.1:1/none")
        .expect("a URL");
    let refused = tokio::time::timeout(PATIENCE, pool.acquire()).await.expect("in time").expect_err("nobody listens");
    assert!(StoreError::from(refused).is_unavailable());
}
