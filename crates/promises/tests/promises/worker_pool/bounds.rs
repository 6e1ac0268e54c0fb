//! Bounds: on jobs, on what is stored of them, and on every statement.

use std::time::Duration;

use client::v1::JobState;
use testbed::{eventually, free_address};

use crate::jobs::{attempts, enqueue, is, job, job_in};
use crate::locks::{NO_JOBS, holding};
use crate::stream::{Stream, hello};
use crate::system::{PATIENCE, says, system};

#[tokio::test]
async fn a_payload_beyond_its_bound_is_refused_by_name_and_its_neighbours_are_stored() {
    system(async |system| {
        let scheduler = system.scheduler_with(&[("--max-payload-bytes", "1000")]).await;
        let client = scheduler.client();
        let large = job_in("default", "a", &"x".repeat(1_001));
        let error = client.enqueue(large.clone()).await.expect_err("is refused");
        assert!(matches!(&error, client::Error::Refused(text) if text.contains("payload")), "{error}");
        let results = client.enqueue_batch(vec![job("a"), large, job("a")]).await.expect("the batch is taken");
        assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
        assert_eq!(system.db.number("select count(*) from fencepost.job").await, 2);
    })
    .await;
}

#[tokio::test]
async fn the_stored_error_is_cut_to_1_000_characters() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let script = "yes | head -c 9000 >&2; printf 'the last é' >&2; exit 75";
        let _worker = system.exec_worker(&[&scheduler], &[("a", script)], &[]);
        let id = enqueue(&client, attempts(job("a"), 1)).await;
        let error = &is(&client, id, JobState::Dead).await.attempts[0].error;
        assert!(error.chars().count() == 1_000 && error.ends_with("the last é"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn a_job_may_run_20_s_unless_it_says_otherwise() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        enqueue(&scheduler.client(), job("a")).await;
        let mut stream = Stream::open(&scheduler, hello("a")).await.expect("opens");
        stream.credit(1).await;
        let timeout = stream.grant().await.timeout.and_then(|timeout| Duration::try_from(timeout).ok());
        assert_eq!(timeout, Some(Duration::from_secs(20)));
    })
    .await;
}

#[tokio::test]
async fn a_stuck_statement_ends_within_its_bound_and_work_goes_on_afterwards() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        enqueue(&client, job("a")).await;
        holding(system, NO_JOBS, async || {
            let other = client.clone();
            let stuck = tokio::spawn(async move { other.enqueue(job("a").with_key("stuck").expect("a key")).await });
            let waits = "select count(*) from pg_locks where relation = 'fencepost.job'::regclass and not granted";
            system.number_is(waits, 1).await;
            let oldest = "select coalesce(max(extract(epoch from clock_timestamp() - query_start) * 1000), 0)::bigint
                from pg_stat_activity where datname = current_database() and state = 'active'
                    and pid <> pg_backend_pid() and query not like 'do $$ begin%'";
            eventually(PATIENCE, "the statement has ended", async || {
                // lock_timeout is 500 ms and statement_timeout 1 s.
                assert!(system.db.number(oldest).await < 1_400, "no statement waits for longer");
                system.db.number(waits).await == 0
            })
            .await;
            stuck.abort();
        })
        .await;
        let _worker = system.exec_worker(&[&scheduler], &[("a", "true")], &[]);
        let id = enqueue(&client, job("a")).await;
        is(&client, id, JobState::Succeeded).await;
    })
    .await;
}

#[tokio::test]
async fn an_explicit_zero_bound_is_refused_and_never_taken_for_not_set() {
    system(async |system| {
        for flag in ["--db-statement-timeout", "--db-lock-timeout", "--db-idle-timeout", "--session-ttl"] {
            let mut refused = system.start_scheduler(free_address(), free_address(), &[(flag, "0s")], &[]);
            assert!(!refused.exit(PATIENCE).await.success());
            says(&refused, &[flag]).await;
        }
    })
    .await;
}
