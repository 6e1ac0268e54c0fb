//! Settlements: who may make them, what they change, and what they are answered.

use std::time::Duration;

use queue_core::{DEFAULT_MAX_PAYLOAD_BYTES, MAX_ERROR_CHARS};
use queue_proto::millis;
use queue_proto::v1::settlement::Outcome;
use queue_proto::v1::{self, AttemptEnd, EffectVerdict, JobState, SettleVerdict};
use tonic::Code;

use crate::hand::{Hand, failed, failed_for_good, released, settlement, succeeded};
use crate::setup::{job, keyed, with_scheduler};

fn success(result: Option<Vec<u8>>, effect: Option<Vec<u8>>) -> Outcome {
    let (result, effect) = (result.map(Into::into), effect.map(Into::into));
    Outcome::Succeeded(v1::Succeeded { result, effect, ..v1::Succeeded::default() })
}

#[tokio::test]
async fn a_settlement_sent_again_is_a_duplicate_whatever_its_outcome() {
    with_scheduler(async |_, scheduler| {
        let snoozed = Outcome::Snoozed(v1::Snoozed { duration: Some(millis(Duration::from_hours(1))) });
        let retry_after = Some(millis(Duration::from_hours(1)));
        let failed_for_now = Outcome::Failed(v1::Failed { retryable: true, retry_after, ..v1::Failed::default() });
        let outcomes = [succeeded(), failed_for_now, failed_for_good("no"), released("shutdown"), snoozed];
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        for outcome in outcomes {
            scheduler.enqueue(job("q", "k")).await;
            let grant = hand.take_one().await;
            assert_eq!(hand.settle(&grant, outcome.clone()).await.verdict(), SettleVerdict::Applied);
            let settled = scheduler.job(grant.job_id).await;
            assert_eq!(settled.attempts.len(), 1);
            for again in [outcome.clone(), succeeded(), failed("other")] {
                assert_eq!(hand.settle(&grant, again).await.verdict(), SettleVerdict::Duplicate);
            }
            assert_eq!(scheduler.job(grant.job_id).await, settled, "nothing has changed");
            if settled.state() == JobState::Ready {
                // The released one would come before the next.
                let grant = hand.take_one().await;
                hand.settle(&grant, succeeded()).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn one_message_may_settle_a_lease_twice_and_be_answered_for_each() {
    with_scheduler(async |_, scheduler| {
        scheduler.enqueue_all(vec![job("q", "k"); 3]).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let grants = hand.take(3).await;
        let twice = |grant| [settlement(grant, succeeded()), settlement(grant, succeeded())];
        hand.post(grants.iter().flat_map(twice).collect()).await;
        let acks = hand.acks(6).await;
        for grant in &grants {
            let mut verdicts: Vec<SettleVerdict> =
                acks.iter().filter(|ack| ack.job_id == grant.job_id).map(v1::SettleAck::verdict).collect();
            verdicts.sort_unstable();
            assert_eq!(verdicts, [SettleVerdict::Applied, SettleVerdict::Duplicate]);
        }
        assert_eq!(scheduler.stats("q").await.succeeded, 3);
    })
    .await;
}

#[tokio::test]
async fn guessed_tokens_and_other_sessions_settle_nothing() {
    with_scheduler(async |_, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let mut other = Hand::open(scheduler, &["q"], &["k"]).await;
        let grant = hand.take_one().await;
        for (job, token) in [(id, grant.token + 1), (id, i64::MAX), (id + 1, grant.token), (i64::MAX, 1)] {
            for outcome in [succeeded(), failed_for_good("guessed")] {
                let ack = hand.settle_as(job, token, Some(outcome)).await;
                assert_eq!(ack.verdict(), SettleVerdict::Fenced);
            }
        }
        let before = scheduler.job(id).await;
        assert_eq!(before.state(), JobState::Leased);
        for outcome in [succeeded(), failed_for_good("stolen"), released("stolen")] {
            assert_eq!(other.settle(&grant, outcome).await.verdict(), SettleVerdict::Fenced);
        }
        assert_eq!(scheduler.job(id).await, before);
        assert_eq!(hand.settle(&grant, succeeded()).await.verdict(), SettleVerdict::Applied);
        assert_eq!(other.settle(&grant, succeeded()).await.verdict(), SettleVerdict::Fenced, "also after the end");
    })
    .await;
}

#[tokio::test]
async fn a_job_or_token_of_zero_is_refused_by_name() {
    with_scheduler(async |_, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let grant = hand.take_one().await;
        for (job_id, token, field) in [(id, 0, "token"), (id, -1, "token"), (0, grant.token, "job_id")] {
            let mut hand = hand.again(scheduler, std::slice::from_ref(&grant)).await.expect("opens");
            hand.post(vec![v1::Settlement { job_id, token, outcome: Some(succeeded()) }]).await;
            let ended = hand.end().await.expect("an error");
            assert_eq!(ended.code(), Code::InvalidArgument);
            assert!(ended.message().starts_with(&format!("settle.settlements[0].{field}: ")), "{ended}");
        }
        assert_eq!(scheduler.state(id).await, JobState::Leased);
    })
    .await;
}

#[tokio::test]
async fn results_and_effects_are_kept_and_an_effect_is_committed_once_per_key() {
    with_scheduler(async |db, scheduler| {
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let bytes = vec![0, 255, 10];
        for new in [job("q", "k"), keyed("q", "k", "effective")] {
            let id = scheduler.enqueue(new).await;
            let grant = hand.take_one().await;
            let ack = hand.settle(&grant, success(Some(bytes.clone()), Some(b"done".to_vec()))).await;
            assert_eq!((ack.verdict(), ack.effect()), (SettleVerdict::Applied, EffectVerdict::Applied));
            let job = scheduler.job(id).await;
            assert_eq!((job.result.as_deref(), job.effect.as_deref()), (Some(&bytes[..]), Some(&b"done"[..])));
        }
        let id = scheduler.enqueue(keyed("q", "k", "before")).await;
        // As a job of the same key left it, whose row retention has dropped.
        db.run("insert into fencepost.effect values ('before', true, 1, 1, now(), 'first')").await;
        let grant = hand.take_one().await;
        let ack = hand.settle(&grant, success(None, Some(b"second".to_vec()))).await;
        assert_eq!((ack.verdict(), ack.effect()), (SettleVerdict::Applied, EffectVerdict::Repeated));
        assert_eq!(scheduler.job(id).await.effect.as_deref(), Some(&b"first"[..]), "the first effect stays");

        scheduler.enqueue(job("q", "k")).await;
        let grant = hand.take_one().await;
        let ack = hand.settle(&grant, success(Some(Vec::new()), Some(Vec::new()))).await;
        assert_eq!(ack.effect(), EffectVerdict::Applied, "an empty effect is one");
        let ended = scheduler.job(grant.job_id).await;
        assert_eq!((ended.result.as_deref(), ended.effect.as_deref()), (Some(&b""[..]), Some(&b""[..])));
    })
    .await;
}

#[tokio::test]
async fn oversized_results_and_effects_are_rejected_and_the_lease_stays_until_it_fails_for_good() {
    with_scheduler(async |_, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let grant = hand.take_one().await;
        let large = Some(vec![1; DEFAULT_MAX_PAYLOAD_BYTES + 1]);
        for (field, outcome) in
            [("succeeded.result", success(large.clone(), None)), ("succeeded.effect", success(None, large.clone()))]
        {
            let ack = hand.settle(&grant, outcome).await;
            assert_eq!(ack.verdict(), SettleVerdict::Rejected);
            assert!(ack.reason.starts_with(&format!("{field}: has 1048577 bytes")), "{}", ack.reason);
        }
        assert_eq!(scheduler.state(id).await, JobState::Leased);
        assert_eq!(hand.beat(std::slice::from_ref(&grant)).await.lost, []);
        hand.settle(&grant, failed_for_good("succeeded.result: has 1048577 bytes")).await;
        let job = scheduler.job(id).await;
        assert_eq!((job.state(), job.dead_reason.as_str()), (JobState::Dead, "failed_for_good"));

        scheduler.enqueue(crate::setup::job("q", "k")).await;
        let grant = hand.take_one().await;
        let largest = Some(vec![1; DEFAULT_MAX_PAYLOAD_BYTES]);
        let ack = hand.settle(&grant, success(largest.clone(), largest)).await;
        assert_eq!(ack.verdict(), SettleVerdict::Applied, "at the bound it fits");
    })
    .await;
}

#[tokio::test]
async fn malformed_outcomes_are_rejected_by_name_and_change_nothing() {
    with_scheduler(async |_, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let grant = hand.take_one().await;
        let mut negative = millis(Duration::ZERO);
        negative.seconds = -1;
        let too_long = Some(millis(Duration::from_hours(30 * 24) + Duration::from_millis(1)));
        let snoozed = |duration| Some(Outcome::Snoozed(v1::Snoozed { duration }));
        let retry =
            |retry_after| Some(Outcome::Failed(v1::Failed { retryable: true, retry_after, ..v1::Failed::default() }));
        for (field, outcome) in [
            ("outcome", None),
            ("snoozed.duration", snoozed(None)),
            ("snoozed.duration", snoozed(Some(negative))),
            ("snoozed.duration", snoozed(too_long)),
            ("failed.retry_after", retry(Some(negative))),
            ("failed.retry_after", retry(too_long)),
        ] {
            let ack = hand.settle_as(grant.job_id, grant.token, outcome).await;
            assert_eq!(ack.verdict(), SettleVerdict::Rejected, "{field}");
            assert!(ack.reason.starts_with(&format!("{field}: ")), "{field}: {}", ack.reason);
        }
        assert_eq!(scheduler.state(id).await, JobState::Leased);
        assert_eq!(hand.settle(&grant, succeeded()).await.verdict(), SettleVerdict::Applied);
    })
    .await;
}

#[tokio::test]
async fn error_texts_are_stored_whatever_they_hold() {
    with_scheduler(async |_, scheduler| {
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let long = "\u{0}ü🦀\r\n\u{1}'\\".repeat(1_000);
        let id = scheduler.enqueue(job("q", "k")).await;
        let grant = hand.take_one().await;
        let outcome = v1::Failed { code: long.clone(), message: long.clone(), ..v1::Failed::default() };
        assert_eq!(hand.settle(&grant, Outcome::Failed(outcome)).await.verdict(), SettleVerdict::Applied);
        let attempt = scheduler.job(id).await.attempts.remove(0);
        let stored = |chars| long.replace('\0', "\u{fffd}").chars().take(chars).collect::<String>();
        assert_eq!(attempt.error, stored(MAX_ERROR_CHARS));
        assert_eq!(attempt.error_code, stored(128));

        let id = scheduler.enqueue(job("q", "k")).await;
        let grant = hand.take_one().await;
        assert_eq!(hand.settle(&grant, released(&long)).await.verdict(), SettleVerdict::Applied);
        assert_eq!(scheduler.job(id).await.attempts[0].error, stored(MAX_ERROR_CHARS));
    })
    .await;
}

#[tokio::test]
async fn failed_jobs_retry_with_delay_and_end_up_dead() {
    with_scheduler(async |db, scheduler| {
        let retry = v1::RetryPolicy {
            max_attempts: Some(4),
            backoff_base: Some(millis(Duration::from_secs(100))),
            jitter: Some(0.0),
            ..v1::RetryPolicy::default()
        };
        let retry = v1::RetryPolicy { backoff_cap: Some(millis(Duration::from_mins(5))), ..retry };
        let id = scheduler.enqueue(v1::NewJob { retry: Some(retry), ..job("q", "k") }).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let mut tokens = Vec::new();
        for (attempt, delay) in [(1, 100), (2, 200), (3, 300)] {
            let grant = hand.take_one().await;
            assert_eq!(grant.attempt, attempt);
            tokens.push(grant.token);
            hand.settle(&grant, failed(&format!("failure {attempt}"))).await;
            let job = scheduler.job(id).await;
            assert_eq!((job.state(), job.attempts_used), (JobState::Scheduled, attempt));
            let ended = job.attempts.last().and_then(|attempt| attempt.ended_at).expect("an end");
            let due = job.due_at.expect("due");
            assert_eq!((due.seconds - ended.seconds, due.nanos), (delay, ended.nanos), "exactly, without jitter");
            db.make_due().await;
        }
        let grant = hand.take_one().await;
        tokens.push(grant.token);
        hand.settle(&grant, failed("failure 4")).await;
        let job = scheduler.job(id).await;
        assert_eq!((job.state(), job.dead_reason.as_str()), (JobState::Dead, "attempts_exhausted"));
        assert_eq!((job.attempts_used, job.lease_losses), (4, 0));
        assert!(job.finished_at.is_some());
        let history: Vec<_> = job.attempts.iter().map(|at| (at.number, at.token, at.end(), at.error.clone())).collect();
        let expected = (1..=4).zip(&tokens).map(|(n, token)| (n, *token, AttemptEnd::Failed, format!("failure {n}")));
        assert_eq!(history, expected.collect::<Vec<_>>());
        assert!(tokens.is_sorted_by(|a, b| a < b));
    })
    .await;
}

#[tokio::test]
async fn retry_after_wins_over_the_policy_and_a_zero_means_at_once() {
    with_scheduler(async |_, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let after = |span| {
            let retry_after = Some(millis(span));
            Outcome::Failed(v1::Failed { retryable: true, retry_after, ..v1::Failed::default() })
        };
        let grant = hand.take_one().await;
        hand.settle(&grant, after(Duration::ZERO)).await;
        let grant = hand.take_one().await;
        assert_eq!((grant.job_id, grant.attempt), (id, 2));
        hand.settle(&grant, after(Duration::from_hours(1))).await;
        let job = scheduler.job(id).await;
        let ended = job.attempts[1].ended_at.expect("an end");
        assert_eq!(job.due_at.expect("due").seconds - ended.seconds, 3_600);
    })
    .await;
}

#[tokio::test]
async fn releases_and_snoozes_use_no_attempt() {
    with_scheduler(async |db, scheduler| {
        let id = scheduler.enqueue(job("q", "k")).await;
        scheduler.enqueue(job("q", "k")).await;
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let grant = hand.take_one().await;
        hand.settle(&grant, released("shutdown")).await;
        assert_eq!(scheduler.state(id).await, JobState::Ready);
        let grant = hand.take_one().await;
        assert_eq!((grant.job_id, grant.attempt), (id, 1), "released jobs come first");
        let snooze = Outcome::Snoozed(v1::Snoozed { duration: Some(millis(Duration::from_hours(2))) });
        hand.settle(&grant, snooze).await;
        let job = scheduler.job(id).await;
        assert_eq!((job.state(), job.attempts_used), (JobState::Scheduled, 0));
        let ended = job.attempts[1].ended_at.expect("an end");
        assert_eq!(job.due_at.expect("due").seconds - ended.seconds, 7_200);
        db.make_due().await;
        let grants = hand.take(2).await;
        let grant = grants.iter().find(|grant| grant.job_id == id).expect("both");
        assert_eq!(grant.attempt, 1);
        hand.settle(grant, succeeded()).await;
        let ends: Vec<AttemptEnd> = scheduler.job(id).await.attempts.iter().map(v1::Attempt::end).collect();
        assert_eq!(ends, [AttemptEnd::Released, AttemptEnd::Snoozed, AttemptEnd::Succeeded]);
    })
    .await;
}
