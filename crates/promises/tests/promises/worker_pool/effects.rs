//! Effects and follow-ups: with the completion or not at all, and once.

use std::sync::{Arc, Mutex};

use client::v1::{AttemptEnd, JobState};
use effect_guard::{Applied, GuardError, apply_once};
use testbed::eventually;
use worker::{Context, HandlerError, Success};

use crate::jobs::{attempts, ends, enqueue, enqueue_all, is, job, job_in, jobs};
use crate::system::{PATIENCE, Running, system, worker_of};

#[tokio::test]
async fn effect_and_completion_commit_together() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let effect = |_: Context| async { Ok(Success { effect: Some("e".into()), ..Success::default() }) };
        let _worker = Running::start(worker_of(&[&scheduler]).handler("a", effect));
        let keyed = jobs("a", 400).into_iter().enumerate();
        let keyed = keyed.map(|(at, job)| job.with_key(&format!("k-{at}")).expect("a key")).collect();
        enqueue_all(&scheduler.client(), keyed).await;
        // One statement sees one instant.
        let apart = "select count(*) from (select job_id from fencepost.finished) f
            full join (select job_id from fencepost.effect where keyed) e using (job_id)
            where f.job_id is null or e.job_id is null";
        eventually(PATIENCE, "all are done", async || {
            assert_eq!(system.db.number(apart).await, 0);
            system.db.number("select count(*) from fencepost.finished").await == 400
        })
        .await;
        assert_eq!(system.db.number("select count(distinct key) from fencepost.effect").await, 400);
    })
    .await;
}

#[tokio::test]
async fn the_same_idempotency_key_and_a_rising_token_are_handed_to_every_attempt() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let script = "echo $FENCEPOST_KEY >> keys; echo $FENCEPOST_FENCING_TOKEN >> tokens; [ $FENCEPOST_ATTEMPT = 3 ]";
        let _worker = system.exec_worker(&[&scheduler], &[("a", script)], &[]);
        let id = enqueue(&client, attempts(job("a"), 3).with_key("pay-7").expect("a key")).await;
        is(&client, id, JobState::Succeeded).await;
        assert_eq!(system.lines("keys"), ["pay-7"; 3]);
        let tokens: Vec<i64> = system.lines("tokens").iter().map(|token| token.parse().expect("a number")).collect();
        assert!(tokens.is_sorted_by(|one, next| one < next) && tokens.len() == 3, "{tokens:?}");
    })
    .await;
}

#[tokio::test]
async fn follow_up_jobs_are_committed_with_the_completion_and_name_their_parent() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let handler = |job: Context| async move {
            let follow_ups = if job.kind() == "parent" { jobs("child", 3) } else { Vec::new() };
            Ok(Success { follow_ups, ..Success::default() })
        };
        let worker = worker_of(&[&scheduler]).handler("parent", handler).handler("child", handler);
        let id = enqueue(&client, job("parent")).await;
        let _worker = Running::start(worker);
        let apart = "select count(*) from fencepost.job p join fencepost.kind k using (kind_id)
            left join fencepost.finished f using (job_id)
            where k.name = 'parent' and (f.job_id is null)
                = exists (select from fencepost.job c where c.parent_id = p.job_id)";
        eventually(PATIENCE, "all are done", async || {
            assert_eq!(system.db.number(apart).await, 0, "both or none");
            system.db.number("select count(*) from fencepost.finished").await == 4
        })
        .await;
        is(&client, id, JobState::Succeeded).await;
        let children = "select count(*) from fencepost.job c join fencepost.job p on p.job_id = c.parent_id";
        assert_eq!(system.db.number(children).await, 3);
    })
    .await;
}

#[tokio::test]
async fn a_completion_whose_follow_ups_are_refused_changes_nothing_and_fails_for_good() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        enqueue(&client, job_in("default", "taken", "content").with_key("taken").expect("a key")).await;
        let handler = |_: Context| async {
            let other = job_in("default", "taken", "other content").with_key("taken")?;
            let follow_ups = vec![job("child"), other];
            Ok(Success { effect: Some("e".into()), follow_ups, ..Success::default() })
        };
        let _worker = Running::start(worker_of(&[&scheduler]).handler("parent", handler));
        let id = enqueue(&client, job("parent")).await;
        let dead = is(&client, id, JobState::Dead).await;
        assert_eq!((ends(&dead), dead.dead_reason.as_str()), (vec![AttemptEnd::Failed], "failed_for_good"));
        assert!(dead.attempts[0].error.contains("follow_ups[1]"), "{}", dead.attempts[0].error);
        assert_eq!(system.db.number("select count(*) from fencepost.effect").await, 0);
        assert_eq!(system.db.number("select count(*) from fencepost.job").await, 2, "no child");
    })
    .await;
}

#[tokio::test]
async fn the_guard_applies_an_effect_in_the_users_own_database_once() {
    system(async |system| {
        system.db.run(effect_guard::DDL).await;
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let applied = Arc::new(Mutex::new(Vec::new()));
        let (all, pool) = (applied.clone(), system.db.pool().clone());
        let handler = move |job: Context| {
            let (all, pool) = (all.clone(), pool.clone());
            async move {
                let key = job.idempotency_key().unwrap_or_default().to_owned();
                let mut tx = pool.begin().await?;
                let what = apply_once(&mut tx, &key, job.token().get()).await?;
                tx.commit().await?;
                all.lock().expect("no panic").push((what, job.token().get()));
                // The first attempt fails after its effect is committed.
                if job.attempt() == 1 {
                    Err(HandlerError::retryable("lost", "no answer"))
                } else {
                    Ok(Success::default())
                }
            }
        };
        let _worker = Running::start(worker_of(&[&scheduler]).handler("a", handler));
        let id = enqueue(&client, attempts(job("a"), 3).with_key("pay-7").expect("a key")).await;
        is(&client, id, JobState::Succeeded).await;
        let applied = applied.lock().expect("no panic").clone();
        let [(Applied::First, first), (Applied::Already, second)] = applied[..] else { panic!("{applied:?}") };
        assert!(first < second);
        let mut conn = system.db.pool().acquire().await.expect("connects");
        let stale = apply_once(&mut conn, "pay-7", first).await;
        assert!(matches!(stale, Err(GuardError::Stale { .. })), "{stale:?}");
    })
    .await;
}
