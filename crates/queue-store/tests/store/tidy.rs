//! Storage kept in order: what is past retention goes, what is open or just ended stays.

use std::time::Duration;

use queue_core::{JobId, JobState};
use queue_store::{PgConnection, QueueCounts, Tidied, queue_counts, tidy};
use sqlx::Connection;
use testbed::{TestDatabase, db_test};

use crate::fixture::{Desk, TTL, holder, job, keyed};

const DAY: Duration = Duration::from_hours(24);
const WEEK: Duration = Duration::from_hours(7 * 24);

/// Two days of long ago, with a job of each fate in the first: ids end in what is commented.
const OLD_DAYS: &str = "
    do $$
    declare parent text; day date;
    begin
        foreach day in array array['2025-06-01', '2025-06-02']::date[] loop
            foreach parent in array array['job', 'finished', 'attempt_log'] loop
                execute format('create table fencepost.%I partition of fencepost.%I for values from (%s) to (%s)',
                    parent || to_char(day, '_YYYYMMDD'), parent,
                    fencepost.id_at(day::timestamp at time zone 'utc'),
                    fencepost.id_at((day + 1)::timestamp at time zone 'utc'));
            end loop;
        end loop;
    end $$;
    create table public.old as
        select n, fencepost.id_at('2025-06-01 12:00+00') + n as id, nextval('fencepost.token_seq') as token
        from generate_series(1, 7) n;
    insert into fencepost.job (job_id, queue_id, kind_id, priority, payload) select id, 1, 1, 4, 'old' from public.old;
    -- 1 waits, 2 is for later, 3 runs, 4 is dead, 5 and 7 finished long ago, 6 has just finished.
    insert into fencepost.ready (position, job_id, queue_id, kind_id, size, priority, attempts, lease_losses, undelivered)
        select id, id, 1, 1, 3, 4, 0, 0, 0 from public.old where n = 1;
    insert into fencepost.scheduled (job_id, due_at, queue_id, kind_id, size, priority, attempts, lease_losses, undelivered)
        select id, '2099-01-01', 1, 1, 3, 4, 1, 0, 0 from public.old where n = 2;
    insert into fencepost.lease (job_id, token, session_no, granted_at, queue_id, kind_id, size, priority, attempts, lease_losses, undelivered)
        select id, token, (select max(session_no) from fencepost.worker_session), now(), 1, 1, 3, 4, 0, 0, 0
        from public.old where n = 3;
    insert into fencepost.dead (job_id, token, died_at, queue_id, kind_id, size, priority, attempts, lease_losses, undelivered, reason)
        select id, token, '2025-06-01 13:00+00', 1, 1, 3, 4, 1, 0, 0, 'failed_for_good' from public.old where n = 4;
    insert into fencepost.finished (job_id, token, session_no, started_at, finished_at, queue_id, kind_id, state, attempts, lease_losses)
        select id, token, 1, '2025-06-01 13:00+00', case n when 6 then now() else '2025-06-01 13:00+00' end, 1, 1, 'succeeded', 0, 0
        from public.old where n >= 5;
    insert into fencepost.attempt_log (job_id, token, session_no, started_at, ended_at, number, ended)
        select id, nextval('fencepost.token_seq'), 1, '2025-06-01 12:30+00', '2025-06-01 12:40+00', 1, 'failed'
        from public.old where n in (2, 4, 7);
    insert into fencepost.tally (queue_id, scheduled, ready, leased, succeeded, dead) values (1, 1, 1, 1, 3, 1)";

async fn old_days(db: &TestDatabase) -> Vec<JobId> {
    db.run(OLD_DAYS).await;
    let ids: Vec<i64> =
        sqlx::query_scalar("select id from public.old order by n").fetch_all(db.pool()).await.expect("reads");
    ids.into_iter().map(|id| JobId::try_from(id).expect("positive")).collect()
}

async fn tidied(desk: &Desk<'_>, keep: Duration) -> Tidied {
    let mut conn = desk.store.vital().await.expect("connects");
    tidy(&mut conn, keep, keep).await.expect("tidies")
}

async fn exists(conn: &mut PgConnection, job: JobId) -> bool {
    queue_store::job(conn, job).await.expect("reads").is_some()
}

#[tokio::test]
async fn partitions_are_there_for_a_week_ahead_and_made_again_when_missing() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        // The database may have been made before midnight.
        tidied(&desk, WEEK).await;
        assert_eq!(tidied(&desk, WEEK).await.partitions_created, 0);
        db.run(
            "do $$ declare day text := to_char((now() at time zone 'utc')::date + 7, 'YYYYMMDD'); begin
                execute format('drop table fencepost.job_%s, fencepost.finished_%s, fencepost.attempt_log_%s', day, day, day);
            end $$",
        )
        .await;
        assert_eq!(tidied(&desk, WEEK).await.partitions_created, 3);
    })
    .await;
}

#[tokio::test]
async fn schedulers_that_were_away_for_longer_than_partitions_reach_start_again() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        // No partition is left of those that were made ahead: today's jobs fall into the default one.
        db.run(
            "do $$ declare part text; begin
                for part in select inhrelid::regclass::text from pg_inherits where inhrelid::regclass::text ~ '_\\d{8}$'
                loop execute 'drop table ' || part; end loop;
            end $$",
        )
        .await;
        let id = desk.add(job("p")).await;
        // Those of the days to come are made, so that it is over tomorrow.
        assert!(tidied(&desk, WEEK).await.partitions_created >= 7 * 3);
        assert_eq!(tidied(&desk, WEEK).await.partitions_created, 0);
        let owner = desk.session().await;
        let held = desk.claim_one(owner).await;
        desk.succeed(holder(&held)).await.expect("settles");
        assert_eq!(desk.look(id).await.state, JobState::Succeeded);
    })
    .await;
}

#[tokio::test]
async fn day_past_retention_goes_but_open_dead_and_just_finished_jobs_stay() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let today = desk.add(job("p")).await;
        let owner = desk.session().await;
        let old = old_days(db).await;
        db.check().await;
        assert_eq!(tidied(&desk, WEEK).await.partitions_dropped, 3);

        let mut states = Vec::new();
        let mut conn = desk.store.read().await.expect("connects");
        for &id in &old {
            states.push(queue_store::job(&mut conn, id).await.expect("reads").map(|job| job.state));
        }
        let kept = [JobState::Ready, JobState::Scheduled, JobState::Leased, JobState::Dead].map(Some);
        assert_eq!(states[..4], kept);
        assert_eq!(states[4..], [None, Some(JobState::Succeeded), None]);
        assert!(exists(&mut conn, today).await);
        drop(conn);
        assert_eq!(desk.look(old[3]).await.attempts.len(), 1, "with their history");
        assert_eq!(desk.look(old[0]).await.payload, b"old");
        assert_eq!(db.number("select count(*) from fencepost.attempt_log").await, 2);

        // They live on where they are now.
        let held = desk.claim_one(owner).await;
        assert_eq!(held.job, old[0]);
        desk.succeed(holder(&held)).await.expect("settles");
        assert_eq!(desk.look(old[0]).await.state, JobState::Succeeded);
        assert_eq!(tidied(&desk, WEEK).await.partitions_dropped, 3, "one day each round");
        assert_eq!(tidied(&desk, WEEK).await.partitions_dropped, 0);

        // And go when they have ended for long enough themselves; what is open stays.
        db.run("update fencepost.finished_kept set finished_at = finished_at - interval '30 days'").await;
        tidied(&desk, WEEK).await;
        assert_eq!(db.number("select count(*) from fencepost.finished_kept").await, 0);
        let mut conn = desk.store.read().await.expect("connects");
        assert!(!exists(&mut conn, old[0]).await);
        assert!(exists(&mut conn, old[1]).await && exists(&mut conn, old[3]).await);
    })
    .await;
}

#[tokio::test]
async fn day_within_retention_stays() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add(job("p")).await;
        desk.session().await;
        let old = old_days(db).await;
        let since = db.number("select extract(epoch from now() - '2025-06-02 00:00+00')::bigint").await;
        let keep = Duration::from_secs(since.unsigned_abs()) + Duration::from_mins(10);
        assert_eq!(tidied(&desk, keep).await.partitions_dropped, 0);
        let mut conn = desk.store.read().await.expect("connects");
        assert!(exists(&mut conn, old[4]).await);
    })
    .await;
}

#[tokio::test]
async fn retention_of_less_than_an_hour_is_refused() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let mut conn = desk.store.vital().await.expect("connects");
        assert!(tidy(&mut conn, Duration::from_secs(1), DAY).await.is_err());
    })
    .await;
}

#[tokio::test]
async fn partition_that_a_reader_holds_is_left_for_the_next_round() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add(job("p")).await;
        desk.session().await;
        old_days(db).await;
        let mut reader = db.pool().acquire().await.expect("connects");
        let mut tx = reader.begin().await.expect("begins");
        sqlx::query("select from fencepost.attempt_log_20250601").execute(&mut *tx).await.expect("reads");
        let mut conn = desk.store.vital().await.expect("connects");
        sqlx::query("set lock_timeout = '50ms'").execute(&mut *conn).await.expect("sets");
        let left = tidy(&mut conn, WEEK, WEEK).await.expect("goes on with the rest");
        assert_eq!(left.partitions_dropped, 0);
        db.check().await;
        tx.rollback().await.expect("ends");
        assert_eq!(tidy(&mut conn, WEEK, WEEK).await.expect("tidies").partitions_dropped, 3);
    })
    .await;
}

#[tokio::test]
async fn keys_and_effects_go_with_their_own_retention_and_never_before_their_job() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add(keyed("young", "p")).await;
        db.run(
            "insert into fencepost.idempotency_key (key, job_id, fingerprint)
                select 'old-' || n, fencepost.id_at('2025-06-01 12:00+00') + n, decode(repeat('00', 16), 'hex')
                from generate_series(1, 10) n;
            insert into fencepost.effect (key, keyed, job_id, token, committed_at, effect)
                select 'old-' || n, true, fencepost.id_at('2025-06-01 12:00+00') + n, n, '2025-06-01 12:00+00', 'e'
                from generate_series(1, 10) n;
            insert into fencepost.job (job_id, queue_id, kind_id, priority, payload, idempotency_key)
                select fencepost.id_at('2025-06-01 12:00+00') + 1, 1, 1, 4, 'p', 'old-1';
            insert into fencepost.dead (job_id, token, died_at, queue_id, kind_id, size, priority, attempts, lease_losses, undelivered, reason)
                select fencepost.id_at('2025-06-01 12:00+00') + 1, 0, now(), 1, 1, 1, 4, 1, 0, 0, 'failed_for_good';
            insert into fencepost.tally (queue_id, dead) values (1, 1)",
        )
        .await;
        assert_eq!(tidied(&desk, WEEK).await.keys_removed, 18);
        let left: Vec<String> = sqlx::query_scalar("select key from fencepost.idempotency_key order by key")
            .fetch_all(db.pool())
            .await
            .expect("reads");
        assert_eq!(left, ["old-1", "young"]);
        assert_eq!(db.number("select count(*) from fencepost.effect").await, 1);
    })
    .await;
}

#[tokio::test]
async fn sessions_go_an_hour_after_their_end_and_never_before_their_leases() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(1).await;
        let (alive, holding, gone, young) =
            (desk.session().await, desk.session().await, desk.session().await, desk.session().await);
        desk.claim_one(holding).await;
        for dead in [holding, gone] {
            db.age_session(dead.session_no, TTL + Duration::from_hours(2)).await;
        }
        db.expire_session(young.session_no).await;
        let warden = desk.warden().await;
        assert_eq!(desk.expire(warden).await.expect("the warden").sessions.len(), 3);
        assert_eq!(tidied(&desk, WEEK).await.sessions_removed, 1);
        let left: Vec<i64> = sqlx::query_scalar("select session_no from fencepost.worker_session order by 1")
            .fetch_all(db.pool())
            .await
            .expect("reads");
        assert_eq!(left, [alive.session_no, holding.session_no, young.session_no]);
    })
    .await;
}

#[tokio::test]
async fn folding_the_tally_keeps_its_sums_also_while_jobs_move() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let owner = desk.session().await;
        let counts = async || -> Vec<QueueCounts> {
            let mut conn = desk.store.read().await.expect("connects");
            let mut counts = queue_counts(&mut conn, &[]).await.expect("counts");
            for queue in &mut counts {
                queue.oldest_ready_age = None;
            }
            counts
        };
        for _ in 0..10 {
            desk.add_many(3).await;
            let held = desk.claim_one(owner).await;
            desk.succeed(holder(&held)).await.expect("settles");
        }
        let before = counts().await;
        tidied(&desk, WEEK).await;
        assert_eq!(counts().await, before);
        assert_eq!(db.number("select count(*) from fencepost.tally").await, 1);
        let moving = async {
            for _ in 0..30 {
                let held = desk.claim_one(owner).await;
                desk.succeed(holder(&held)).await.expect("settles");
                desk.add_many(1).await;
            }
        };
        let folding = async {
            for _ in 0..10 {
                tidied(&desk, WEEK).await;
            }
        };
        tokio::join!(moving, folding);
        let after = counts().await;
        assert_eq!((after[0].ready, after[0].leased, after[0].succeeded), (20, 0, 40));
    })
    .await;
}
