//! A schema for one test, dropped at its end.

use std::future::Future;
use std::str::FromStr;
use std::time::Duration;

use effect_guard::DDL;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

/// Connections of a test: as many as its callers, so that they race in the database and not for a connection.
const CONNECTIONS: u32 = 50;
/// Longer than any wait of a healthy test.
const PATIENCE: Duration = Duration::from_mins(1);

/// Runs `test` with a pool on a fresh schema that holds the guard's table and a table of effects.
pub async fn with_schema<F: Future<Output = ()> + Send + 'static>(test: impl FnOnce(PgPool) -> F) {
    let options = PgConnectOptions::from_str(&database_url()).expect("DATABASE_URL is a URL");
    let mut admin = PgConnection::connect_with(&options).await.expect("PostgreSQL is there");
    let name: String = sqlx::query_scalar("select 'guard_' || replace(gen_random_uuid()::text, '-', '')")
        .fetch_one(&mut admin)
        .await
        .expect("PostgreSQL 13 or later");
    run(&mut admin, format!("create schema {name}")).await;

    let options = options.options([("search_path", &name)]);
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect_with(options).await.expect("connects");
    sqlx::raw_sql(DDL).execute(&pool).await.expect("the DDL applies");
    sqlx::raw_sql("create table effect (key text, token bigint)").execute(&pool).await.expect("creates");
    let outcome = tokio::time::timeout(PATIENCE, tokio::spawn(test(pool.clone()))).await;

    pool.close().await;
    run(&mut admin, format!("drop schema {name} cascade")).await;
    outcome.expect("the test ends in time").expect("the test passes");
}

#[expect(clippy::disallowed_methods, reason = "a test has no command line; the runner gives it its database so")]
fn database_url() -> String {
    std::env::var("DATABASE_URL").expect("DATABASE_URL names a PostgreSQL; `cargo xtask test` starts one")
}

async fn run(conn: &mut PgConnection, sql: String) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.expect("executes");
}

/// The change that the guard protects.
pub async fn make_effect(conn: &mut PgConnection, key: &str, token: i64) {
    sqlx::query("insert into effect values ($1, $2)").bind(key).bind(token).execute(conn).await.expect("inserts");
}

/// Committed effects.
pub async fn effects(pool: &PgPool) -> i64 {
    sqlx::query_scalar("select count(*) from effect").fetch_one(pool).await.expect("counts")
}

/// Committed rows of the guard as (key, token).
pub async fn guards(pool: &PgPool) -> Vec<(String, i64)> {
    sqlx::query_as("select key, token from effect_guard order by key").fetch_all(pool).await.expect("reads")
}
