//! Plans of the hot statements: through indexes, on tables without statistics, with fresh ones and with stale ones.
//!
//! The statements are those that the functions have prepared on the very connection, and the plans those that they run with.

use std::time::Duration;

use queue_core::{AttemptEnd, Start};
use queue_store::{PgConnection, Succeeding, Warden};
use sqlx::{AssertSqlSafe, Connection};
use testbed::{TestDatabase, db_test};

use crate::fixture::{Desk, GAP, LOWS, TTL, failed, holder, job, keyed, unheld};

/// Rows of each place.
const READY: usize = 10_000;
const LEASED: usize = 5_000;
const SCHEDULED: usize = 5_000;
/// Statements that must have been seen on a hot connection.
const HOT: [&str; 18] = [
    "enqueue",
    "enqueue_leased",
    "look_up_keys",
    "claim",
    "settle_succeeded",
    "settle_endings",
    "policies",
    "place",
    "take_back",
    "check_warden",
    "reap_page",
    "finish_pass",
    "expire_sessions",
    "held_leases",
    "still_held",
    "renew",
    "look_out",
    "promote",
];

/// Nobody gathers statistics but the test.
async fn no_autovacuum(db: &TestDatabase) {
    db.run(
        "do $$ declare t text; begin
            for t in select oid::regclass::text from pg_class
                where relnamespace = 'fencepost'::regnamespace and relkind = 'r'
            loop execute format('alter table %s set (autovacuum_enabled = off)', t); end loop;
        end $$",
    )
    .await;
}

async fn load(desk: &Desk<'_>) {
    desk.add_many(READY + LEASED).await;
    let mut later = job("later");
    later.start = Start::After(Duration::from_hours(1));
    for batch in vec![later; SCHEDULED].chunks(queue_core::MAX_BATCH) {
        desk.enqueue(batch).await;
    }
    let owner = desk.session().await;
    let mut leased = 0;
    while leased < LEASED {
        let claimed = desk.claim(&[(owner, u32::MAX)]).await;
        assert_eq!(claimed.len(), queue_core::MAX_BATCH, "one claim takes at most a batch");
        leased += claimed.len();
    }
}

/// Uses every hot statement on one connection.
async fn use_all(desk: &Desk<'_>, conn: &mut PgConnection, warden: Warden) {
    let owner = desk.session().await;
    let rows = desk.rows(&[keyed("k", "p")]).await;
    queue_store::enqueue(conn, &rows).await.expect("enqueues");
    queue_store::enqueue_for(conn, &rows, &[owner]).await.expect("enqueues");
    let held = queue_store::claim(conn, &desk.request(&[(owner, 4)])).await.expect("claims").jobs;
    let row = Succeeding { holder: holder(&held[0]), result: None, effect: Some(b"e") };
    queue_store::settle_succeeded(conn, &[row]).await.expect("settles");
    let mut tx = conn.begin().await.expect("begins");
    queue_store::settle_endings(&mut tx, &[failed(&held[1])], LOWS).await.expect("settles");
    let lost = [unheld(&held[2], owner)];
    queue_store::take_back(&mut tx, &lost, AttemptEnd::Undelivered, "gone", LOWS).await.expect("takes back");
    tx.commit().await.expect("commits");
    queue_store::promote(conn, 1_000, None).await.expect("promotes");
    queue_store::look_out(conn, &[(held[0].lane, 0)]).await.expect("looks");
    queue_store::renew(conn, &[owner], TTL).await.expect("renews");
    assert_eq!(queue_store::held_leases(conn, &[owner.session_no]).await.expect("reads").len(), 1);
    assert_eq!(queue_store::still_held(conn, &[holder(&held[3])]).await.expect("reads").len(), 1);
    desk.db.expire_session(owner.session_no).await;
    queue_store::expire_sessions(conn, warden, 10, TTL, GAP).await.expect("answers").expect("the warden");
    assert_eq!(queue_store::finish_pass(conn, warden, false).await.expect("answers"), Some(false));
    let mut tx = conn.begin().await.expect("begins");
    let reaped = queue_store::reap_page(&mut tx, warden, 10, LOWS).await.expect("reaps").expect("the warden");
    assert_eq!(reaped.leases, 1);
    tx.commit().await.expect("commits");
}

/// Names and plans of what was prepared on a connection.
async fn plans(conn: &mut PgConnection) -> Vec<(String, Vec<String>)> {
    let prepared: Vec<(String, String, i32)> = sqlx::query_as(
        "select name, statement, cardinality(parameter_types) from pg_prepared_statements where statement like '-- %'",
    )
    .persistent(false)
    .fetch_all(&mut *conn)
    .await
    .expect("reads");
    let mut plans = Vec::new();
    for (id, statement, count) in prepared {
        let nulls = vec!["null"; usize::try_from(count).unwrap_or_default()].join(", ");
        let arguments = if count == 0 { String::new() } else { format!("({nulls})") };
        let explain = AssertSqlSafe(format!("explain (costs off) execute {id}{arguments}"));
        let lines: Vec<String> =
            sqlx::query_scalar(explain).persistent(false).fetch_all(&mut *conn).await.expect("explains");
        let name = statement.trim_start_matches("-- ").lines().next().unwrap_or_default().trim().to_owned();
        plans.push((name, lines));
    }
    plans
}

/// Whether a plan's line reads one of the tables that grow with the backlog.
fn reads_hot_table(line: &str) -> bool {
    let Some((_, after)) = line.split_once(" on ") else { return false };
    let table = after.split(' ').next().unwrap_or_default();
    matches!(table, "ready" | "lease" | "scheduled" | "job" | "job_kept" | "idempotency_key")
        || table.starts_with("job_2")
}

/// What is wrong with a plan: it reads a table whole, or the whole of an index.
fn fault(name: &str, plan: &[String]) -> Option<String> {
    let wrong = |what: &str| Some(format!("{what}: {name}:\n{}", plan.join("\n")));
    for (at, line) in plan.iter().enumerate() {
        if line.contains(" Join") && (line.contains("Hash") || line.contains("Merge")) {
            return wrong("joins by reading all");
        }
        if !reads_hot_table(line) {
            continue;
        }
        if line.contains("Seq Scan") || line.contains("Bitmap Heap Scan") {
            return wrong("reads the whole table");
        }
        let condition = plan.get(at + 1).map(String::as_str).unwrap_or_default();
        if line.contains("Index Scan") && !condition.contains("Index Cond:") {
            return wrong("reads the whole index");
        }
        if line.contains("ready_pkey") && !condition.contains("kind_id") {
            return wrong("reads more than the lane");
        }
    }
    None
}

fn check(plans: &[(String, Vec<String>)]) {
    let faults: Vec<String> = plans.iter().filter_map(|(name, plan)| fault(name, plan)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

async fn check_hot(desk: &Desk<'_>) {
    let warden = desk.acquire("reaper-1", Some(Warden(0))).await.expect("free");
    let store = desk.db.another_store();
    let mut conn = store.hot().await.expect("connects");
    use_all(desk, &mut conn, warden).await;
    let plans = plans(&mut conn).await;
    for name in HOT {
        assert!(plans.iter().any(|(seen, _)| seen == name), "{name} was not used");
    }
    check(&plans);
}

#[tokio::test]
async fn hot_statements_use_indexes_on_tables_without_statistics() {
    db_test(async |db| {
        no_autovacuum(db).await;
        let desk = Desk::open(db).await;
        load(&desk).await;
        check_hot(&desk).await;
    })
    .await;
}

#[tokio::test]
async fn hot_statements_use_indexes_on_tables_with_fresh_statistics() {
    db_test(async |db| {
        no_autovacuum(db).await;
        let desk = Desk::open(db).await;
        load(&desk).await;
        db.run("vacuum analyze").await;
        check_hot(&desk).await;
    })
    .await;
}

#[tokio::test]
async fn hot_statements_use_indexes_on_tables_with_stale_statistics() {
    db_test(async |db| {
        no_autovacuum(db).await;
        let desk = Desk::open(db).await;
        // Full when they were read, as far as jobs go, and empty as far as the hot tables go.
        db.run("vacuum analyze").await;
        load(&desk).await;
        check_hot(&desk).await;
    })
    .await;
}

#[tokio::test]
async fn hot_statements_use_indexes_when_their_plans_were_made_on_empty_tables() {
    db_test(async |db| {
        no_autovacuum(db).await;
        let desk = Desk::open(db).await;
        plans_made_before_a_burst(&desk).await;
    })
    .await;
}

#[tokio::test]
async fn hot_statements_use_indexes_when_their_plans_were_made_on_tables_analyzed_while_empty() {
    db_test(async |db| {
        no_autovacuum(db).await;
        let desk = Desk::open(db).await;
        db.run("vacuum analyze").await;
        plans_made_before_a_burst(&desk).await;
    })
    .await;
}

/// The plans are cached: what was made while little was there is used when much is.
async fn plans_made_before_a_burst(desk: &Desk<'_>) {
    let warden = desk.warden().await;
    desk.add_many(4).await;
    let store = desk.db.another_store();
    let mut conn = store.hot().await.expect("connects");
    use_all(desk, &mut conn, warden).await;
    load(desk).await;
    check(&plans(&mut conn).await);
}
