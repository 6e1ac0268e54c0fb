//! The template that test databases are copied from: migrated once per server and schema.

use sqlx::migrate::Migrator;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};

static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations");

/// Test databases are named `fencepost_test_<seconds since 1970>_<number>`, so that their age shows.
pub const TEST_PREFIX: &str = "fencepost_test_";
/// Leftovers of tests that were killed are removed when they are that old.
const KEEP_SECONDS: i64 = 3_600;
/// Templates of other schemas, which another checkout may use, are removed when they are that old.
const KEEP_TEMPLATE_SECONDS: i64 = 86_400;
/// Advisory lock under which templates are made. Any number that nobody else uses on a server for tests.
const TEMPLATE_LOCK: i64 = 0x66_65_6e_63_65;

/// Name of the template of this schema.
fn template_name() -> String {
    let mut sum = [0_u8; 8];
    for migration in MIGRATIONS.iter() {
        for (at, byte) in migration.checksum.iter().enumerate() {
            // Rotated, so that the order of the migrations matters and equal parts do not cancel out.
            sum[at % 8] = sum[at % 8].rotate_left(1) ^ byte;
        }
    }
    format!("fencepost_template_{:016x}", u64::from_be_bytes(sum))
}

/// Creates a database from the template, which is made if it is not there. Returns its name.
pub async fn create_database(server: &PgConnectOptions) -> Result<String, sqlx::Error> {
    let mut admin = PgConnection::connect_with(server).await?;
    let template = template_name();
    ensure_template(&mut admin, server, &template).await?;
    let now = now(&mut admin).await?;
    let id: String =
        sqlx::query_scalar("select left(replace(gen_random_uuid()::text, '-', ''), 16)").fetch_one(&mut admin).await?;
    let name = format!("{TEST_PREFIX}{now}_{id}");
    run(&mut admin, format!("create database {name} template {template}")).await?;
    admin.close().await?;
    Ok(name)
}

/// Drops a database and whoever is connected to it.
pub async fn drop_database(server: &PgConnectOptions, name: &str) -> Result<(), sqlx::Error> {
    let mut admin = PgConnection::connect_with(server).await?;
    run(&mut admin, format!("drop database if exists {name} with (force)")).await?;
    admin.close().await
}

/// Test binaries start in parallel: one migrates, the others wait for it.
async fn ensure_template(
    admin: &mut PgConnection,
    server: &PgConnectOptions,
    template: &str,
) -> Result<(), sqlx::Error> {
    if is_there(admin, template).await? {
        return Ok(());
    }
    sqlx::query("select pg_advisory_lock($1)").bind(TEMPLATE_LOCK).execute(&mut *admin).await?;
    if !is_there(admin, template).await? {
        // Under another name until it is whole: a run that is killed half-way must not leave half a template.
        let draft = format!("{template}_draft");
        run(admin, format!("drop database if exists {draft} with (force)")).await?;
        run(admin, format!("create database {draft}")).await?;
        let url = server.clone().database(&draft).to_url_lossy();
        queue_store::migrate(url.as_str(), None).await.expect("the migrations apply");
        let now = now(admin).await?;
        run(admin, format!("comment on database {draft} is '{now}'")).await?;
        run(admin, format!("alter database {draft} rename to {template}")).await?;
    }
    sqlx::query("select pg_advisory_unlock($1)").bind(TEMPLATE_LOCK).execute(admin).await?;
    Ok(())
}

async fn is_there(admin: &mut PgConnection, name: &str) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("select exists (select from pg_database where datname = $1)").bind(name).fetch_one(admin).await
}

/// Seconds since 1970, by the clock of the server.
async fn now(admin: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("select extract(epoch from now())::bigint").fetch_one(admin).await
}

/// Removes databases of runs that were killed, and templates of schemas of other days.
pub async fn remove_leftovers(admin: &mut PgConnection) -> Result<(), sqlx::Error> {
    let names: Vec<String> = sqlx::query_scalar(
        r"select datname::text
        from pg_database
        where datname ~ '^fencepost_test_\d+_' and split_part(datname, '_', 3)::bigint < $1 - $2
            or datname ~ '^fencepost_template_' and datname <> $3
                and shobj_description(oid, 'pg_database') ~ '^\d+$'
                and shobj_description(oid, 'pg_database')::bigint < $1 - $4",
    )
    .bind(now(admin).await?)
    .bind(KEEP_SECONDS)
    .bind(template_name())
    .bind(KEEP_TEMPLATE_SECONDS)
    .fetch_all(&mut *admin)
    .await?;
    for name in names {
        run(admin, format!("drop database if exists {name} with (force)")).await?;
    }
    Ok(())
}

async fn run(conn: &mut PgConnection, sql: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await?;
    Ok(())
}
