//! The scheduler's role: it can do all that a scheduler does, and nothing to the schema.

use queue_core::AttemptEnd;
use queue_store::{Store, StoreConfig, StoreError, check_schema, migrate, tidy};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use std::time::Duration;
use testbed::{TestDatabase, db_test};

use crate::fixture::{Desk, ending, failed, holder, job, unheld};

const PASSWORD: &str = "test-only";

/// Roles belong to the server, so each test has one of its own and drops it.
async fn with_role(name: &'static str, granted: bool, test: impl AsyncFnOnce(&TestDatabase, String)) {
    db_test(async |db| {
        let run = async |sql: String| {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(db.pool()).await.expect("executes");
        };
        let role = format!("{name}_{}", db.number("select txid_current()").await + i64::from(std::process::id()));
        run(format!("drop role if exists {role}; create role {role} login password '{PASSWORD}'")).await;
        if granted {
            migrate(&db.url(), Some(&role)).await.expect("grants");
        }
        test(db, db.url_as(&role, PASSWORD)).await;
        run(format!("drop owned by {role}; drop role {role}")).await;
    })
    .await;
}

fn store(url: String) -> Store {
    let bound = Duration::from_secs(10);
    Store::new(&StoreConfig {
        url,
        connect_timeout: bound,
        statement_timeout: bound,
        lock_timeout: bound,
        idle_in_transaction_timeout: bound,
        hot_connections: 2,
        read_connections: 1,
    })
    .expect("a URL")
}

#[tokio::test]
async fn app_role_can_do_everything_that_a_scheduler_does() {
    with_role("fencepost_can", true, async |db, url| {
        let desk = Desk::on(db, store(url)).await;
        db.end_grace().await;
        let mut conn = desk.store.read().await.expect("connects");
        check_schema(&mut conn).await.expect("reads the migrations");
        drop(conn);

        let jobs = desk.add_many(5).await;
        let owner = desk.session().await;
        let held = desk.claim(&[(owner, 5)]).await;
        assert!(desk.succeed(holder(&held[0])).await.is_some());
        assert!(desk.end(failed(&held[1])).await.is_some());
        assert!(desk.end(ending(&held[2], AttemptEnd::Released)).await.is_some());
        assert_eq!(desk.take_back(&[unheld(&held[3], owner)], AttemptEnd::Undelivered).await, 1);
        assert_eq!(desk.promote_all().await.count, 1);
        let warden = desk.warden().await;
        assert_eq!(desk.lose(owner, warden).await.leases, 1);
        assert_eq!(desk.look(jobs[0]).await.attempts.len(), 1);

        let mut conn = desk.store.vital().await.expect("connects");
        queue_store::beat(&mut conn, desk.scheduler, Duration::from_secs(5)).await.expect("beats");
        assert!(queue_store::note_pass(&mut conn, warden).await.expect("notes"));
        let day = Duration::from_hours(24);
        tidy(&mut conn, day, day).await.expect("tidies");
        assert!(queue_store::audit(&mut conn).await.expect("audits").expect("is not skipped").is_empty());
        queue_store::queue_counts(&mut conn, &[]).await.expect("counts");
        assert!(queue_store::release_maintenance(&mut conn, warden).await.expect("releases"));
        queue_store::retire_scheduler(&mut conn, desk.scheduler).await.expect("retires");
        drop(conn);
        desk.close().await;
    })
    .await;
}

#[tokio::test]
async fn app_role_can_reach_partitions_made_after_the_grant() {
    with_role("fencepost_late", true, async |db, url| {
        let desk = Desk::on(db, store(url)).await;
        // Made again by the role itself, through the function that runs as the owner.
        db.run(
            "do $$ declare part text; begin
                for part in select inhrelid::regclass::text from pg_inherits
                    where inhparent in ('fencepost.job'::regclass, 'fencepost.finished'::regclass, 'fencepost.attempt_log'::regclass)
                        and inhrelid::regclass::text ~ '_\\d{8}$'
                loop execute 'drop table ' || part; end loop;
            end $$",
        )
        .await;
        let mut conn = desk.store.vital().await.expect("connects");
        let day = Duration::from_hours(24);
        assert_eq!(tidy(&mut conn, day, day).await.expect("tidies").partitions_created, 24);
        drop(conn);
        let id = desk.add(job("after")).await;
        let owner = desk.session().await;
        let held = desk.claim_one(owner).await;
        assert!(desk.succeed(holder(&held)).await.is_some());
        assert_eq!(desk.look(id).await.payload, b"after");
        desk.close().await;
    })
    .await;
}

#[tokio::test]
async fn app_role_cannot_change_the_schema_or_the_record_of_migrations() {
    with_role("fencepost_cannot", true, async |_, url| {
        let mut conn = PgConnection::connect(&url).await.expect("connects");
        for sql in [
            "create table fencepost.mine (id integer)",
            "alter table fencepost.job add column more text",
            "alter table fencepost.ready disable trigger all",
            "drop table fencepost.lease",
            "drop table fencepost.job_kept",
            "truncate fencepost.finished",
            "drop schema fencepost cascade",
            "create or replace function fencepost.audit() returns setof text language sql as 'select 1::text where false'",
            "insert into fencepost.schema_migration select * from fencepost.schema_migration",
            "update fencepost.schema_migration set success = false",
            "delete from fencepost.schema_migration",
            "alter sequence fencepost.token_seq restart",
        ] {
            let refused = sqlx::raw_sql(sql).execute(&mut conn).await.expect_err(sql);
            let code = refused.as_database_error().and_then(|error| error.code().map(String::from));
            assert_eq!(code.as_deref(), Some("42501"), "{sql}: {refused}");
            assert!(matches!(StoreError::from(refused), StoreError::Other(_)), "{sql}");
        }
        conn.close().await.expect("closes");
    })
    .await;
}

#[tokio::test]
async fn nobody_else_may_drop_partitions() {
    with_role("fencepost_other", false, async |_, url| {
        let mut conn = PgConnection::connect(&url).await.expect("connects");
        for sql in ["select fencepost.create_partitions(1)", "select fencepost.drop_partition('1 day')"] {
            let refused = sqlx::raw_sql(sql).execute(&mut conn).await.expect_err(sql);
            assert!(refused.to_string().contains("permission denied"), "{refused}");
        }
        conn.close().await.expect("closes");
    })
    .await;
}
