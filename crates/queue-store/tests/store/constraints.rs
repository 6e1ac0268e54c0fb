//! Every constraint of the schema refuses what it is there for, and none is without a test.

use std::collections::BTreeSet;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use testbed::db_test;

type Values = &'static [(&'static str, &'static str)];

/// A row that is allowed, by table.
const ALLOWED: [(&str, Values); 17] = [
    ("installation", &[("singleton", "true")]),
    ("queue", &[("queue_id", "1"), ("name", "'q'")]),
    ("kind", &[("kind_id", "1"), ("name", "'k'")]),
    ("lane", &[("queue_id", "1"), ("priority", "4"), ("kind_id", "1")]),
    ("job", &[("job_id", "1"), ("queue_id", "1"), ("kind_id", "1"), ("priority", "4"), ("payload", "''")]),
    (
        "ready",
        &[
            ("position", "1"),
            ("job_id", "1"),
            ("queue_id", "1"),
            ("kind_id", "1"),
            ("size", "0"),
            ("priority", "4"),
            ("attempts", "1"),
            ("lease_losses", "0"),
            ("undelivered", "0"),
        ],
    ),
    (
        "scheduled",
        &[
            ("due_at", "now()"),
            ("job_id", "1"),
            ("queue_id", "1"),
            ("kind_id", "1"),
            ("size", "0"),
            ("priority", "4"),
            ("attempts", "1"),
            ("lease_losses", "0"),
            ("undelivered", "0"),
        ],
    ),
    (
        "lease",
        &[
            ("token", "1"),
            ("session_no", "1"),
            ("granted_at", "now()"),
            ("job_id", "1"),
            ("queue_id", "1"),
            ("kind_id", "1"),
            ("size", "0"),
            ("priority", "4"),
            ("attempts", "1"),
            ("lease_losses", "0"),
            ("undelivered", "0"),
        ],
    ),
    (
        "finished",
        &[
            ("token", "0"),
            ("session_no", "1"),
            ("started_at", "now()"),
            ("finished_at", "now()"),
            ("job_id", "1"),
            ("queue_id", "1"),
            ("kind_id", "1"),
            ("state", "'succeeded'"),
            ("attempts", "1"),
            ("lease_losses", "0"),
        ],
    ),
    (
        "dead",
        &[
            ("token", "0"),
            ("died_at", "now()"),
            ("reason", "'undeliverable'"),
            ("job_id", "1"),
            ("queue_id", "1"),
            ("kind_id", "1"),
            ("size", "0"),
            ("priority", "4"),
            ("attempts", "1"),
            ("lease_losses", "0"),
            ("undelivered", "0"),
        ],
    ),
    (
        "attempt_log",
        &[
            ("job_id", "1"),
            ("token", "1"),
            ("session_no", "1"),
            ("started_at", "now()"),
            ("ended_at", "now()"),
            ("number", "1"),
            ("ended", "'failed'"),
        ],
    ),
    ("idempotency_key", &[("key", "'k'"), ("job_id", "1"), ("fingerprint", "decode(repeat('00', 16), 'hex')")]),
    (
        "effect",
        &[
            ("key", "'k'"),
            ("keyed", "true"),
            ("job_id", "1"),
            ("token", "1"),
            ("committed_at", "now()"),
            ("effect", "''"),
        ],
    ),
    (
        "worker",
        &[
            ("session_no", "1"),
            ("session_id", "decode(repeat('00', 16), 'hex')"),
            ("name", "'w'"),
            ("build", "''"),
            ("queues", "'{}'"),
            ("kinds", "'{}'"),
            ("capacity", "1"),
        ],
    ),
    ("worker_session", &[("session_no", "1"), ("owner", "1"), ("epoch", "1"), ("expires_at", "now()")]),
    ("scheduler", &[("scheduler_id", "1"), ("name", "'s'"), ("beat_at", "now()"), ("resumed_at", "now()")]),
    ("maintenance", &[("singleton", "true")]),
];

/// Refused by a check: the allowed row of the table with these values instead. Constraint, table, values.
const CHECKS: [(&str, &str, &[Values]); 52] = [
    ("attempt_log_ended_check", "attempt_log", &[&[("ended", "'succeeded'")]]),
    ("attempt_log_error_check", "attempt_log", &[&[("error", "repeat('x', 1001)")]]),
    ("attempt_log_error_code_check", "attempt_log", &[&[("error_code", "repeat('x', 129)")]]),
    ("attempt_log_number_check", "attempt_log", &[&[("number", "0")]]),
    ("attempt_log_token_check", "attempt_log", &[&[("token", "0")], &[("token", "-1")]]),
    ("dead_attempts_check", "dead", &[&[("attempts", "-1")]]),
    ("dead_check", "dead", &[&[("lease_losses", "2")], &[("lease_losses", "-1")]]),
    ("dead_priority_check", "dead", &[&[("priority", "10")], &[("priority", "-1")]]),
    ("dead_reason_check", "dead", &[&[("reason", "'bored'")]]),
    ("dead_size_check", "dead", &[&[("size", "-1")]]),
    ("dead_token_check", "dead", &[&[("token", "-1")]]),
    ("dead_undelivered_check", "dead", &[&[("undelivered", "-1")]]),
    ("effect_token_check", "effect", &[&[("token", "0")], &[("token", "-1")]]),
    ("finished_attempts_check", "finished", &[&[("attempts", "-1")]]),
    ("finished_check", "finished", &[&[("lease_losses", "2")]]),
    ("finished_token_check", "finished", &[&[("token", "-1")]]),
    ("idempotency_key_fingerprint_check", "idempotency_key", &[&[("fingerprint", "'\\x00'")]]),
    ("idempotency_key_key_check", "idempotency_key", &[&[("key", "''")], &[("key", "repeat('x', 257)")]]),
    ("installation_shard_check", "installation", &[&[("shard", "64")], &[("shard", "-1")]]),
    ("installation_singleton_check", "installation", &[&[("singleton", "false")]]),
    ("job_idempotency_key_check", "job", &[&[("idempotency_key", "''")], &[("idempotency_key", "repeat('x', 257)")]]),
    ("job_job_id_check", "job", &[&[("job_id", "0")], &[("job_id", "-1")]]),
    ("job_priority_check", "job", &[&[("priority", "10")]]),
    (
        "kind_name_check",
        "kind",
        &[&[("name", "''")], &[("name", "'a b'")], &[("name", "repeat('x', 129)")], &[("name", "e'a\\n'")]],
    ),
    ("lane_priority_check", "lane", &[&[("priority", "10")]]),
    ("lease_attempts_check", "lease", &[&[("attempts", "-1")]]),
    ("lease_check", "lease", &[&[("lease_losses", "2")]]),
    ("lease_priority_check", "lease", &[&[("priority", "10")]]),
    ("lease_size_check", "lease", &[&[("size", "-1")]]),
    ("lease_token_check", "lease", &[&[("token", "0")], &[("token", "-1")]]),
    ("lease_undelivered_check", "lease", &[&[("undelivered", "-1")]]),
    ("maintenance_singleton_check", "maintenance", &[&[("singleton", "false")]]),
    ("queue_backoff_base_ms_check", "queue", &[&[("backoff_base_ms", "-1")], &[("backoff_base_ms", "2592000001")]]),
    ("queue_backoff_cap_ms_check", "queue", &[&[("backoff_cap_ms", "-1")], &[("backoff_cap_ms", "2592000001")]]),
    (
        "queue_backoff_factor_check",
        "queue",
        &[&[("backoff_factor", "0.9")], &[("backoff_factor", "101")], &[("backoff_factor", "'NaN'")]],
    ),
    ("queue_jitter_check", "queue", &[&[("jitter", "-0.1")], &[("jitter", "1.1")], &[("jitter", "'NaN'")]]),
    ("queue_max_attempts_check", "queue", &[&[("max_attempts", "0")], &[("max_attempts", "10001")]]),
    ("queue_max_lease_losses_check", "queue", &[&[("max_lease_losses", "0")], &[("max_lease_losses", "10001")]]),
    ("queue_name_check", "queue", &[&[("name", "''")], &[("name", "'ä'")], &[("name", "repeat('x', 129)")]]),
    ("queue_timeout_ms_check", "queue", &[&[("timeout_ms", "0")], &[("timeout_ms", "2592000001")]]),
    ("ready_attempts_check", "ready", &[&[("attempts", "-1")]]),
    ("ready_check", "ready", &[&[("lease_losses", "2")]]),
    ("ready_priority_check", "ready", &[&[("priority", "-1")]]),
    ("ready_size_check", "ready", &[&[("size", "-1")]]),
    ("ready_undelivered_check", "ready", &[&[("undelivered", "-1")]]),
    ("scheduled_attempts_check", "scheduled", &[&[("attempts", "-1")]]),
    ("scheduled_check", "scheduled", &[&[("lease_losses", "2")]]),
    ("scheduled_priority_check", "scheduled", &[&[("priority", "10")]]),
    ("scheduled_size_check", "scheduled", &[&[("size", "-1")]]),
    ("scheduled_undelivered_check", "scheduled", &[&[("undelivered", "-1")]]),
    ("worker_session_id_check", "worker", &[&[("session_id", "'\\x00'")]]),
    ("worker_session_epoch_check", "worker_session", &[&[("epoch", "0")]]),
];

/// Refused beside the allowed row: the same row with these values instead. Constraint, table, first, second.
const KEYS: [(&str, &str, Values, Values); 21] = [
    ("attempt_log_pkey", "attempt_log", &[], &[]),
    ("dead_pkey", "dead", &[], &[("token", "2")]),
    ("effect_pkey", "effect", &[], &[("job_id", "2"), ("token", "2")]),
    ("finished_pkey", "finished", &[], &[("token", "2"), ("state", "'cancelled'")]),
    ("idempotency_key_pkey", "idempotency_key", &[], &[("job_id", "2")]),
    ("job_pkey", "job", &[], &[("queue_id", "2")]),
    ("kind_name_key", "kind", &[], &[("kind_id", "2")]),
    ("kind_pkey", "kind", &[], &[("name", "'other'")]),
    ("lane_pkey", "lane", &[], &[]),
    ("lease_pkey", "lease", &[], &[("token", "2"), ("session_no", "2")]),
    ("queue_name_key", "queue", &[], &[("queue_id", "2")]),
    ("queue_pkey", "queue", &[], &[("name", "'other'")]),
    ("ready_moved_key", "ready", &[("position", "5")], &[("position", "6")]),
    ("ready_pkey", "ready", &[], &[]),
    ("scheduled_pkey", "scheduled", &[], &[("due_at", "now() + interval '1 day'")]),
    ("worker_pkey", "worker", &[], &[("session_id", "decode(repeat('01', 16), 'hex')")]),
    ("worker_session_id_key", "worker", &[], &[("session_no", "2")]),
    ("worker_session_pkey", "worker_session", &[], &[("owner", "2")]),
    ("scheduler_pkey", "scheduler", &[], &[]),
    ("maintenance_pkey", "maintenance", &[], &[("token", "1")]),
    ("installation_pkey", "installation", &[], &[("shard", "1")]),
];

/// Every constraint and unique index of the schema; those of a partition are those of its table.
const ALL: &str = "
    select conname::text from pg_constraint k join pg_class c on c.oid = k.conrelid
    where k.connamespace = 'fencepost'::regnamespace and not c.relispartition and c.relname <> 'schema_migration'
        and contype in ('c', 'p', 'u', 'f', 'x')
    union
    select i.relname::text from pg_index x
    join pg_class i on i.oid = x.indexrelid join pg_class t on t.oid = x.indrelid
    where i.relnamespace = 'fencepost'::regnamespace and x.indisunique and not t.relispartition
        and t.relname <> 'schema_migration'";

fn allowed(table: &str) -> Values {
    ALLOWED.iter().find(|(name, _)| *name == table).map(|(_, values)| *values).expect("a row per table")
}

async fn insert(conn: &mut PgConnection, table: &str, instead: Values) -> Result<(), sqlx::Error> {
    let kept = allowed(table).iter().filter(|(column, _)| instead.iter().all(|(other, _)| other != column));
    let (columns, values): (Vec<_>, Vec<_>) = kept.chain(instead).copied().unzip();
    let (columns, values) = (columns.join(", "), values.join(", "));
    let sql = format!("insert into fencepost.{table} ({columns}) overriding system value values ({values})");
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await?;
    Ok(())
}

/// The constraint that refused, by the name it has on the table and not on its default partition.
fn refuser(outcome: Result<(), sqlx::Error>) -> String {
    let error = outcome.expect_err("must be refused");
    let name = error.as_database_error().and_then(|error| error.constraint().map(ToOwned::to_owned));
    name.unwrap_or_else(|| panic!("refused by something else: {error}")).replace("_kept", "")
}

#[tokio::test]
async fn every_check_refuses_what_it_is_there_for() {
    db_test(async |db| {
        let mut conn = db.pool().acquire().await.expect("connects");
        for (constraint, table, wrong) in CHECKS {
            for values in wrong {
                let mut tx = conn.begin().await.expect("begins");
                assert_eq!(refuser(insert(&mut tx, table, values).await), constraint, "{values:?}");
                tx.rollback().await.expect("rolls back");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn every_key_refuses_a_second_row() {
    db_test(async |db| {
        let mut conn = db.pool().acquire().await.expect("connects");
        db.run("delete from fencepost.installation; delete from fencepost.maintenance").await;
        for (constraint, table, first, second) in KEYS {
            let mut tx = conn.begin().await.expect("begins");
            insert(&mut tx, table, first).await.unwrap_or_else(|error| panic!("{table}: {error}"));
            assert_eq!(refuser(insert(&mut tx, table, second).await), constraint);
            tx.rollback().await.expect("rolls back");
        }
    })
    .await;
}

#[tokio::test]
async fn no_constraint_is_without_a_test() {
    db_test(async |db| {
        let all: Vec<String> = sqlx::query_scalar(ALL).fetch_all(db.pool()).await.expect("reads");
        let all: BTreeSet<&str> = all.iter().map(String::as_str).collect();
        let checks = CHECKS.iter().map(|(name, ..)| *name);
        let tested: BTreeSet<&str> = checks.chain(KEYS.iter().map(|(name, ..)| *name)).collect();
        assert_eq!(all, tested);
    })
    .await;
}
