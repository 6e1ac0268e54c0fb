//! Attempts that do not succeed: how long a job waits, what it has used up, and when it is dead.

use std::time::Duration;

use queue_core::{AttemptEnd, Counters, DeadReason, JobId, JobState, NewJob, Next, RetryOverrides, stored_text};
use queue_store::{Ending, Owner};
use testbed::{TestDatabase, db_test};

use crate::fixture::{Desk, ending, failed, holder, job};

/// A job without jitter that may fail so often.
fn exact(max_attempts: u32) -> NewJob {
    let mut job = job("p");
    job.retry = RetryOverrides { max_attempts: Some(max_attempts), jitter: Some(0.0), ..RetryOverrides::default() };
    job
}

/// Fails the one ready job, with a jitter's chance that must not matter; makes it ready again; tells its delay.
async fn fail_once(desk: &Desk<'_>, owner: Owner, retry_after: Option<Duration>) -> Option<Duration> {
    let held = desk.claim_one(owner).await;
    let next = desk.end(Ending { chance: 0.7, wait: retry_after, ..failed(&held) }).await.expect("settles");
    let Next::Scheduled(_, told) = next else { return None };
    let stored = stored_delay(desk.db).await;
    assert_eq!(stored, told, "what is stored is what was told");
    assert_eq!(desk.promote_all().await.count, 1);
    Some(stored)
}

/// The delay of the one scheduled job, exact: both times are those of the transaction that failed it.
async fn stored_delay(db: &TestDatabase) -> Duration {
    let micros = db
        .number(
            "select (extract(epoch from s.due_at - a.ended_at) * 1000000)::bigint
            from fencepost.scheduled s join fencepost.attempt_log a using (job_id)
            order by a.token desc limit 1",
        )
        .await;
    Duration::from_micros(micros.unsigned_abs())
}

async fn delays(desk: &Desk<'_>, job: NewJob, failures: usize) -> Vec<u64> {
    desk.add(job).await;
    let owner = desk.session().await;
    let mut delays = Vec::new();
    for _ in 0..failures {
        let delay = fail_once(desk, owner, None).await.expect("attempts left");
        assert_eq!(delay.subsec_nanos(), 0, "whole seconds");
        delays.push(delay.as_secs());
    }
    delays
}

#[tokio::test]
async fn failures_wait_exactly_1_2_4_up_to_64_seconds_by_default() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        assert_eq!(delays(&desk, exact(20), 9).await, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    })
    .await;
}

#[tokio::test]
async fn base_2_cap_60_waits_exactly_2_4_8_16_32_60_60_seconds() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let mut job = exact(20);
        job.retry.backoff_base = Some(Duration::from_secs(2));
        job.retry.backoff_cap = Some(Duration::from_mins(1));
        assert_eq!(delays(&desk, job, 7).await, [2, 4, 8, 16, 32, 60, 60]);
    })
    .await;
}

#[tokio::test]
async fn policy_of_the_queue_holds_where_the_job_says_nothing() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let id = desk.add(job("p")).await;
        db.run("update fencepost.queue set backoff_base_ms = 3000, backoff_factor = 1, jitter = 0, max_attempts = 2")
            .await;
        let owner = desk.session().await;
        assert_eq!(fail_once(&desk, owner, None).await, Some(Duration::from_secs(3)));
        assert_eq!(fail_once(&desk, owner, None).await, None, "two attempts are all");
        assert_eq!(desk.look(id).await.dead_reason.as_deref(), Some("attempts_exhausted"));
    })
    .await;
}

#[tokio::test]
async fn retry_after_wins_over_the_policy() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add(exact(9)).await;
        let owner = desk.session().await;
        for wait in [Duration::from_millis(1), queue_core::MAX_WAIT, Duration::ZERO] {
            assert_eq!(fail_once(&desk, owner, Some(wait)).await, Some(wait));
        }
    })
    .await;
}

#[tokio::test]
async fn failure_for_good_is_dead_at_once() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let id = desk.add(exact(9)).await;
        let owner = desk.session().await;
        let held = desk.claim_one(owner).await;
        let next = desk.end(Ending { retryable: false, ..failed(&held) }).await;
        let used = Counters { attempts: 1, lease_losses: 0, undelivered: 0 };
        assert_eq!(next, Some(Next::Dead(used, DeadReason::Final)));
        let seen = desk.look(id).await;
        assert_eq!((seen.state, seen.dead_reason.as_deref()), (JobState::Dead, Some("failed_for_good")));
        assert_eq!(seen.attempts[0].code.as_deref(), Some("broken"));
    })
    .await;
}

#[tokio::test]
async fn failed_jobs_retry_with_delay_and_end_up_dead() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let id = desk.add(exact(3)).await;
        let owner = desk.session().await;
        assert_eq!(fail_once(&desk, owner, None).await, Some(Duration::from_secs(1)));
        assert_eq!(fail_once(&desk, owner, None).await, Some(Duration::from_secs(2)));
        assert_eq!(fail_once(&desk, owner, None).await, None);
        let seen = desk.look(id).await;
        assert_eq!((seen.state, seen.used.attempts), (JobState::Dead, 3));
        assert_eq!(seen.dead_reason.as_deref(), Some("attempts_exhausted"));
        let history: Vec<_> = seen.attempts.iter().map(|attempt| (attempt.number, attempt.end)).collect();
        assert_eq!(history, [(1, AttemptEnd::Failed), (2, AttemptEnd::Failed), (3, AttemptEnd::Failed)]);
        assert!(desk.claim(&[(owner, 1)]).await.is_empty(), "the dead are not granted");
    })
    .await;
}

#[tokio::test]
async fn job_may_use_its_last_attempt_of_ten_thousand() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let id = desk.add(exact(10_000)).await;
        db.run("update fencepost.ready set attempts = 9998").await;
        let owner = desk.session().await;
        assert_eq!(fail_once(&desk, owner, None).await, Some(Duration::from_secs(64)));
        assert_eq!(fail_once(&desk, owner, None).await, None);
        assert_eq!(desk.look(id).await.used.attempts, 10_000);
    })
    .await;
}

#[tokio::test]
async fn release_uses_no_attempt_and_stays_in_front() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let ids = desk.add_many(5).await;
        let owner = desk.session().await;
        for round in 0..3 {
            let held = desk.claim_one(owner).await;
            assert_eq!(held.job, ids[0], "round {round}");
            assert_eq!(held.used, Counters::default());
            assert!(matches!(desk.end(ending(&held, AttemptEnd::Released)).await, Some(Next::Ready(_))));
        }
        let seen = desk.look(ids[0]).await;
        assert_eq!((seen.state, seen.used), (JobState::Ready, Counters::default()));
        assert!(seen.attempts.iter().all(|attempt| (attempt.number, attempt.end) == (1, AttemptEnd::Released)));
    })
    .await;
}

#[tokio::test]
async fn jobs_released_together_come_before_those_behind_them() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let ids = desk.add_many(9).await;
        let owner = desk.session().await;
        let mut ended: Vec<_> =
            desk.claim(&[(owner, 4)]).await.iter().map(|job| ending(job, AttemptEnd::Released)).collect();
        ended.sort_by_key(|row| row.holder);
        desk.end_all(&ended).await;
        let mut again: Vec<JobId> = desk.claim(&[(owner, 4)]).await.iter().map(|job| job.job).collect();
        again.sort_unstable();
        assert_eq!(again, ids[..4]);
    })
    .await;
}

#[tokio::test]
async fn snooze_uses_no_attempt_and_waits_as_long_as_asked() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let id = desk.add(exact(1)).await;
        let owner = desk.session().await;
        for _ in 0..3 {
            let held = desk.claim_one(owner).await;
            let snooze = Ending { wait: Some(Duration::from_mins(5)), ..ending(&held, AttemptEnd::Snoozed) };
            assert_eq!(desk.end(snooze).await, Some(Next::Scheduled(Counters::default(), Duration::from_mins(5))));
            assert_eq!(stored_delay(db).await, Duration::from_mins(5));
            desk.promote_all().await;
        }
        assert_eq!(desk.look(id).await.used, Counters::default());
    })
    .await;
}

#[tokio::test]
async fn counters_travel_with_the_job_through_every_place() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let id = desk.add(exact(9)).await;
        db.run("update fencepost.ready set attempts = 3, lease_losses = 1, undelivered = 2").await;
        let owner = desk.session().await;
        let held = desk.claim_one(owner).await;
        assert_eq!(held.used, Counters { attempts: 3, lease_losses: 1, undelivered: 2 });
        desk.end(failed(&held)).await.expect("settles");
        let after = Counters { attempts: 4, lease_losses: 1, undelivered: 0 };
        assert_eq!(desk.look(id).await.used, after);
        desk.promote_all().await;
        let held = desk.claim_one(owner).await;
        assert_eq!(held.used, after, "an attempt that arrived starts the count of undelivered ones anew");
        desk.succeed(holder(&held)).await.expect("settles");
        assert_eq!(desk.look(id).await.used, after);
    })
    .await;
}

#[tokio::test]
async fn mixed_endings_of_one_batch_each_go_their_way() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.enqueue(&vec![exact(9); 5]).await;
        let owner = desk.session().await;
        let mut held = desk.claim(&[(owner, 5)]).await;
        held.sort_by_key(holder);
        desk.succeed(holder(&held[4])).await.expect("settles");
        let rows = [
            failed(&held[0]),
            Ending { retryable: false, ..failed(&held[1]) },
            ending(&held[2], AttemptEnd::Released),
            Ending { wait: Some(Duration::from_secs(1)), ..ending(&held[3], AttemptEnd::Snoozed) },
            failed(&held[4]),
        ];
        let ended = desk.end_all(&rows).await;
        assert!(matches!(ended[0], Some(Next::Scheduled(..))));
        assert!(matches!(ended[1], Some(Next::Dead(..))));
        assert!(matches!(ended[2], Some(Next::Ready(..))));
        assert!(matches!(ended[3], Some(Next::Scheduled(..))));
        assert_eq!(ended[4], None, "settled before");
    })
    .await;
}

#[tokio::test]
async fn cleaned_error_text_of_any_wording_is_stored() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let id = desk.add(exact(9)).await;
        let owner = desk.session().await;
        let held = desk.claim_one(owner).await;
        let wording = "nul \0, crab \u{1F980}, \u{FFFF}, quote ' \\ ".repeat(200);
        let text = stored_text(&wording, queue_core::MAX_ERROR_CHARS);
        let code = stored_text(&wording, queue_core::MAX_CODE_CHARS);
        desk.end(Ending { text: Some(text.clone()), code: Some(code.clone()), ..failed(&held) })
            .await
            .expect("settles");
        let seen = desk.look(id).await;
        assert_eq!(seen.attempts[0].error.as_deref(), Some(&*text));
        assert_eq!(seen.attempts[0].code.as_deref(), Some(&*code));
        assert_eq!((text.chars().count(), code.chars().count()), (1_000, 128));
    })
    .await;
}

#[tokio::test]
async fn text_that_was_not_cleaned_is_refused_as_data_and_changes_nothing() {
    db_test(async |db| {
        use sqlx::Connection;
        let desk = Desk::open(db).await;
        desk.add(exact(9)).await;
        let owner = desk.session().await;
        let held = desk.claim_one(owner).await;
        for text in ["a\0b".to_owned(), "x".repeat(1_001)] {
            let mut conn = desk.store.hot().await.expect("connects");
            let mut tx = conn.begin().await.expect("begins");
            let row = Ending { text: Some(text), ..failed(&held) };
            let refused = queue_store::settle_endings(&mut tx, &[row], crate::fixture::LOWS).await;
            assert!(refused.expect_err("cannot be stored").is_data());
            tx.rollback().await.expect("rolls back");
        }
        assert!(desk.end(failed(&held)).await.is_some(), "the lease is still there");
    })
    .await;
}
