//! The audit finds each kind of violation. Every one is planted in a transaction that is rolled back.

use sqlx::Connection;
use testbed::db_test;

use crate::fixture::{Desk, keyed};

const PLANTED: [(&str, &str, &str); 11] = [
    (
        "job in two places",
        "insert into fencepost.scheduled (job_id, due_at, queue_id, kind_id, size, priority, attempts, lease_losses, undelivered)
        select job_id, now(), queue_id, kind_id, 0, priority, 0, 0, 0 from fencepost.ready limit 1",
        " is in 2 states: ",
    ),
    (
        "job both leased and finished",
        "insert into fencepost.finished (job_id, token, session_no, started_at, finished_at, queue_id, kind_id, state, attempts, lease_losses)
        select job_id, nextval('fencepost.token_seq'), session_no, now(), now(), queue_id, kind_id, 'succeeded', 0, 0 from fencepost.lease",
        " is in 2 states: ",
    ),
    ("job in no place", "delete from fencepost.ready", " is in 0 states"),
    (
        "ready job that was never enqueued",
        "insert into fencepost.ready (position, job_id, queue_id, kind_id, size, priority, attempts, lease_losses, undelivered)
        select 1, 1, queue_id, kind_id, 0, priority, 0, 0, 0 from fencepost.ready limit 1",
        "job 1 is ready but has no row in job",
    ),
    (
        "finished job that was never enqueued",
        "insert into fencepost.finished (job_id, token, session_no, started_at, finished_at, queue_id, kind_id, state, attempts, lease_losses)
        values (2, 0, 1, now(), now(), 1, 1, 'cancelled', 0, 0)",
        "job 2 is cancelled but has no row in job",
    ),
    (
        "token of a lease that ended before",
        "insert into fencepost.attempt_log (job_id, token, session_no, started_at, ended_at, number, ended)
        select job_id, token, session_no, now(), now(), 1, 'lost' from fencepost.lease",
        " was used 2 times",
    ),
    (
        "token of two leases",
        "insert into fencepost.lease select r.job_id, l.token, l.session_no, now(), r.queue_id, r.kind_id, 0, r.priority, 0, 0, 0
        from fencepost.ready r, fencepost.lease l limit 1",
        " was used 2 times",
    ),
    ("lease without a session", "delete from fencepost.worker_session", ", which does not exist"),
    ("token above the sequence", "update fencepost.lease set token = token + 1000000000000", "has a token above the sequence"),
    (
        "key of another job",
        "update fencepost.idempotency_key set job_id = (select max(job_id) from fencepost.ready where job_id <> idempotency_key.job_id)",
        ", which carries another key",
    ),
    ("lane that is not registered", "delete from fencepost.lane", "holds ready jobs but is not registered"),
];

#[tokio::test]
async fn each_planted_violation_is_found() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(3).await;
        desk.add(keyed("k", "p")).await;
        let owner = desk.session().await;
        desk.claim_one(owner).await;
        let mut conn = db.pool().acquire().await.expect("connects");
        for (what, plant, line) in PLANTED {
            let mut tx = conn.begin().await.expect("begins");
            sqlx::raw_sql(plant).execute(&mut *tx).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            let found = queue_store::audit(&mut tx).await.expect("audits").expect("is not skipped");
            assert!(found.iter().any(|found| found.contains(line)), "{what}: {found:?}");
            tx.rollback().await.expect("rolls back");
        }
    })
    .await;
}

#[tokio::test]
async fn each_wrong_count_is_found() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(3).await;
        let mut conn = db.pool().acquire().await.expect("connects");
        for plant in [
            "insert into fencepost.tally (queue_id, ready) values (1, 1)",
            "insert into fencepost.tally (queue_id, leased) values (1, -1)",
            "insert into fencepost.tally (queue_id, scheduled) values (1, 5)",
            "insert into fencepost.tally (queue_id, dead) values (77, 1)",
            "delete from fencepost.tally",
        ] {
            let mut tx = conn.begin().await.expect("begins");
            sqlx::raw_sql(plant).execute(&mut *tx).await.expect("plants");
            let found = queue_store::audit(&mut tx).await.expect("audits").expect("is not skipped");
            assert_eq!(found.len(), 1, "{plant}: {found:?}");
            assert!(found[0].contains("tally says"), "{plant}: {found:?}");
            tx.rollback().await.expect("rolls back");
        }
    })
    .await;
}

#[tokio::test]
async fn empty_database_has_no_violations() {
    db_test(async |db| db.check().await).await;
}
