//! The schema: applying it, and refusing to work on one that is not known.

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::{Connection, PgConnection};

use crate::StoreError;

static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations");
const TABLE: &str = "fencepost.schema_migration";

/// Applies what is missing, and grants a role the least that a scheduler needs.
///
/// Safe when many start at once: one migrates, the others wait for it. Refuses a schema that is newer than this program.
pub async fn migrate(url: &str, app_role: Option<&str>) -> Result<(), StoreError> {
    let mut conn = PgConnection::connect(url).await?;
    migrator().run(&mut conn).await.map_err(|error| match error {
        MigrateError::VersionMissing(version) => StoreError::Schema(format!(
            "the schema has migration {version}, which this program does not know: it is newer; use a newer program"
        )),
        MigrateError::VersionMismatch(version) => StoreError::Schema(format!(
            "migration {version} was applied with another text than this program has; use the program that matches"
        )),
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error.into(),
        other => StoreError::Schema(format!("the migrations could not be applied: {other}")),
    })?;
    if let Some(role) = app_role {
        grant(&mut conn, role).await?;
    }
    conn.close().await?;
    Ok(())
}

fn migrator() -> Migrator {
    let mut migrator = Migrator::with_migrations(MIGRATIONS.iter().cloned().collect());
    migrator.dangerous_set_table_name(TABLE);
    migrator.create_schema("fencepost");
    migrator
}

/// Checks that the schema is exactly the one this program knows.
pub async fn check_schema(conn: &mut PgConnection) -> Result<(), StoreError> {
    let known: Vec<i64> = MIGRATIONS.iter().map(|migration| migration.version).collect();
    let absent =
        sqlx::query_scalar::<_, bool>("select to_regclass($1) is null").bind(TABLE).fetch_one(&mut *conn).await?;
    let applied: Vec<i64> = if absent {
        Vec::new()
    } else {
        sqlx::query_scalar("select version from fencepost.schema_migration where success order by version")
            .fetch_all(conn)
            .await?
    };
    if applied == known {
        return Ok(());
    }
    let newest = |versions: &[i64]| versions.last().map_or_else(|| "none".to_owned(), ToString::to_string);
    let advice = if applied.len() < known.len() { "run `scheduler migrate` first" } else { "use a newer scheduler" };
    Err(StoreError::Schema(format!(
        "the schema is at migration {}, this program needs {}: {advice}",
        newest(&applied),
        newest(&known)
    )))
}

/// What the scheduler's role may do: read and write rows, draw numbers, call the functions. It owns nothing.
const GRANTS: [&str; 5] = [
    "grant usage on schema fencepost to",
    "grant select, insert, update, delete on all tables in schema fencepost to",
    "revoke insert, update, delete on fencepost.schema_migration from",
    "grant usage, select, update on all sequences in schema fencepost to",
    "grant execute on all functions in schema fencepost to",
];

async fn grant(conn: &mut PgConnection, role: &str) -> Result<(), StoreError> {
    let quoted: String = sqlx::query_scalar("select quote_ident($1)").bind(role).fetch_one(&mut *conn).await?;
    for grant in GRANTS {
        // The role's name cannot be a parameter; it was quoted by the server.
        sqlx::query(sqlx::AssertSqlSafe(format!("{grant} {quoted}"))).execute(&mut *conn).await?;
    }
    Ok(())
}
