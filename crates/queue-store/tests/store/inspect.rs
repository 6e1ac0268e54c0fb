//! What people and programs see of jobs and queues.

use std::time::Duration;

use queue_core::{JobId, JobState, Start};
use queue_store::{Ending, queue_counts};
use testbed::db_test;

use crate::fixture::{Desk, failed, holder, job, job_of, keyed};

#[tokio::test]
async fn job_is_seen_in_every_state() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let owner = desk.session().await;
        let done = desk.add(job("done")).await;
        let dead = desk.add(job("dead")).await;
        let leased = desk.add(job("leased")).await;
        let held = desk.claim(&[(owner, 3)]).await;
        desk.succeed(holder(&held[0])).await.expect("settles");
        desk.end(Ending { retryable: false, ..failed(&held[1]) }).await.expect("settles");
        let mut later = job("later");
        later.start = Start::After(Duration::from_hours(1));
        let scheduled = desk.add(later).await;
        let ready = desk.add(job("ready")).await;
        let cancelled = desk.add(job("cancelled")).await;
        db.run(
            "with gone as (delete from fencepost.ready where job_id = (select max(job_id) from fencepost.ready) returning *),
            done as (insert into fencepost.finished (job_id, token, session_no, started_at, finished_at, queue_id, kind_id,
                    state, attempts, lease_losses)
                select job_id, 0, 0, now(), now(), queue_id, kind_id, 'cancelled', 0, 0 from gone)
            insert into fencepost.tally (queue_id, ready, cancelled) select queue_id, -1, 1 from gone",
        )
        .await;
        let expected = [
            (done, JobState::Succeeded),
            (dead, JobState::Dead),
            (leased, JobState::Leased),
            (scheduled, JobState::Scheduled),
            (ready, JobState::Ready),
            (cancelled, JobState::Cancelled),
        ];
        for (id, state) in expected {
            let seen = desk.look(id).await;
            assert_eq!(seen.state, state);
            assert_eq!(seen.finished_at_us.is_some(), matches!(state, JobState::Succeeded | JobState::Dead | JobState::Cancelled));
            assert_eq!(seen.due_at_us.is_some(), state == JobState::Scheduled);
            let view: String = sqlx::query_scalar("select state from fencepost.job_status where job_id = $1")
                .bind(id.get())
                .fetch_one(db.pool())
                .await
                .expect("one row per job");
            assert_eq!(view, state.as_str(), "a person with psql sees the same");
        }
        assert_eq!(db.number("select count(*) from fencepost.job_status").await, 6);
    })
    .await;
}

#[tokio::test]
async fn job_that_came_back_is_seen_as_ready() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let id = desk.add(job("p")).await;
        let owner = desk.session().await;
        let held = desk.claim_one(owner).await;
        desk.end(failed(&held)).await.expect("settles");
        desk.promote_all().await;
        let seen = desk.look(id).await;
        assert_eq!((seen.state, seen.used.attempts), (JobState::Ready, 1));
        let used = "select attempts_used::bigint from fencepost.job_status where state = 'ready'";
        assert_eq!(db.number(used).await, 1);
    })
    .await;
}

#[tokio::test]
async fn unknown_job_is_told_apart() {
    db_test(async |db| {
        let mut conn = db.store().read().await.expect("connects");
        for id in [1, i64::MAX] {
            let id = JobId::try_from(id).expect("positive");
            assert!(queue_store::job(&mut conn, id).await.expect("reads").is_none());
        }
    })
    .await;
}

#[tokio::test]
async fn history_lists_every_attempt_in_order_with_its_worker() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let id = desk.add(job("p")).await;
        let owner = desk.session().await;
        let mut tokens = Vec::new();
        for _ in 0..3 {
            let held = desk.claim_one(owner).await;
            tokens.push(held.token.get());
            desk.end(failed(&held)).await.expect("settles");
            desk.promote_all().await;
        }
        let held = desk.claim_one(owner).await;
        tokens.push(held.token.get());
        desk.succeed(holder(&held)).await.expect("settles");
        let seen = desk.look(id).await.attempts;
        assert_eq!(seen.iter().map(|attempt| attempt.token).collect::<Vec<_>>(), tokens);
        assert_eq!(seen.iter().map(|attempt| attempt.number).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert!(seen.iter().all(|attempt| attempt.worker.as_deref() == Some("worker-1")));
        assert!(seen.iter().all(|attempt| attempt.started_at_us > 0 && attempt.ended_at_us >= attempt.started_at_us));
    })
    .await;
}

#[tokio::test]
async fn queue_counts_are_exact_and_in_the_order_of_names() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let owner = desk.session().await;
        desk.add_many(6).await;
        desk.add(job_of("fax", "send", "p")).await;
        let mail = |count: u32| (owner, count);
        let held = desk.claim(&[mail(3)]).await;
        desk.succeed(holder(&held[0])).await.expect("settles");
        desk.end(failed(&held[1])).await.expect("settles");
        let mut conn = desk.store.read().await.expect("connects");
        let counts = queue_counts(&mut conn, &[]).await.expect("counts");
        let short: Vec<_> = counts
            .iter()
            .map(|queue| {
                (queue.queue.as_str(), queue.scheduled, queue.ready, queue.leased, queue.succeeded, queue.dead)
            })
            .collect();
        assert_eq!(short, [("fax", 0, 1, 0, 0, 0), ("mail", 1, 3, 1, 1, 0)]);
        let one = queue_counts(&mut conn, &["mail".to_owned(), "no-such".to_owned()]).await.expect("counts");
        assert_eq!(one.len(), 1);
        assert_eq!(one[0].ready, 3);
    })
    .await;
}

#[tokio::test]
async fn oldest_ready_age_is_that_of_the_longest_waiting_job() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add(job("p")).await;
        let age = async || {
            let mut conn = desk.store.read().await.expect("connects");
            queue_counts(&mut conn, &[]).await.expect("counts")[0].oldest_ready_age
        };
        assert!(age().await.expect("one is ready") < Duration::from_secs(20));
        db.run("update fencepost.ready set position = fencepost.id_at(now() - interval '100 seconds')").await;
        assert!((100..120).contains(&age().await.expect("one is ready").as_secs()));
        let owner = desk.session().await;
        let held = desk.claim_one(owner).await;
        assert_eq!(age().await, None);
        desk.succeed(holder(&held)).await.expect("settles");
    })
    .await;
}

#[tokio::test]
async fn queries_expose_backlog_failures_and_lease_health() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.enqueue(&[keyed("k", "p"), job("q")]).await;
        let owner = desk.session().await;
        desk.claim_one(owner).await;
        let row: (String, String, Option<String>, Option<String>) = sqlx::query_as(
            "select queue, kind, worker, idempotency_key from fencepost.job_status where state = 'leased' and token is not null",
        )
        .fetch_one(db.pool())
        .await
        .expect("the lease is seen");
        assert_eq!(row, ("mail".to_owned(), "send".to_owned(), Some("worker-1".to_owned()), Some("k".to_owned())));
        let names: Vec<String> = sqlx::query_scalar(
            "select attname::text from pg_attribute where attrelid = 'fencepost.job_status'::regclass and attname = 'payload'",
        )
        .fetch_all(db.pool())
        .await
        .expect("reads");
        assert!(names.is_empty(), "the view shows no payload");
    })
    .await;
}
