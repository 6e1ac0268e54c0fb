//! Settlement of successes: once, by the holder, with its effect.

use queue_core::{AttemptEnd, JobState, Token};
use queue_store::{Holder, Past, SettledEffect, Succeeding};
use testbed::db_test;

use crate::fixture::{Desk, ending, failed, holder, job, keyed};

#[tokio::test]
async fn success_is_settled_with_its_result() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let id = desk.add(job("p")).await;
        let owner = desk.session().await;
        let held = desk.claim_one(owner).await;
        let row = Succeeding { holder: holder(&held), result: Some(b"\0done"), effect: None };
        assert_eq!(desk.succeed_with(row).await, Some(SettledEffect::None));
        let seen = desk.look(id).await;
        assert_eq!((seen.state, seen.result.as_deref()), (JobState::Succeeded, Some(&b"\0done"[..])));
        assert_eq!(seen.attempts.len(), 1);
        assert_eq!((seen.attempts[0].number, seen.attempts[0].end), (1, AttemptEnd::Succeeded));
        assert_eq!(seen.attempts[0].worker.as_deref(), Some("worker-1"));
    })
    .await;
}

#[tokio::test]
async fn effect_is_committed_once_per_key_and_a_repeat_is_told() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let owner = desk.session().await;
        let run = async |effect: &'static [u8]| {
            let held = desk.claim_one(owner).await;
            let row = Succeeding { holder: holder(&held), result: None, effect: Some(effect) };
            desk.succeed_with(row).await
        };
        let first = desk.add(keyed("k", "p")).await;
        assert_eq!(run(b"first").await, Some(SettledEffect::Applied));
        // The key itself was forgotten before its effect: the same request is another job.
        db.run("delete from fencepost.idempotency_key").await;
        let second = desk.add(keyed("k", "p")).await;
        assert_eq!(run(b"second").await, Some(SettledEffect::Repeated));
        assert_eq!(desk.look(second).await.state, JobState::Succeeded);
        for id in [first, second] {
            assert_eq!(desk.look(id).await.effect.as_deref(), Some(&b"first"[..]), "the first effect stays");
        }
        assert_eq!(db.number("select count(*) from fencepost.effect").await, 1);
    })
    .await;
}

#[tokio::test]
async fn job_without_a_key_has_an_effect_of_its_own_even_if_a_key_looks_like_its_id() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let owner = desk.session().await;
        let plain = desk.add(job("p")).await;
        desk.add(keyed(&plain.to_string(), "p")).await;
        let held = desk.claim(&[(owner, 2)]).await;
        let mut holders: Vec<Holder> = held.iter().map(holder).collect();
        holders.sort_unstable();
        let rows: Vec<_> =
            holders.iter().map(|&holder| Succeeding { holder, result: None, effect: Some(b"e") }).collect();
        let mut conn = desk.store.hot().await.expect("connects");
        let settled = queue_store::settle_succeeded(&mut conn, &rows).await.expect("settles");
        assert_eq!(settled, [Some(SettledEffect::Applied); 2]);
    })
    .await;
}

#[tokio::test]
async fn wrong_token_wrong_session_and_wrong_job_change_nothing() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(2).await;
        let (owner, other) = (desk.session().await, desk.session().await);
        db.run("select setval('fencepost.token_seq', 5000)").await;
        let held = desk.claim(&[(owner, 2)]).await;
        let right = holder(&held[0]);
        let token = |by: i64| Token::try_from(right.token.get() + by).expect("positive");
        let wrong = [
            Holder { token: token(1), ..right },
            Holder { token: token(-1), ..right },
            Holder { session_no: other.session_no, ..right },
            Holder { job: held[1].job, ..right },
            Holder { token: token(1_000_000), ..right },
        ];
        for holder in wrong {
            assert_eq!(desk.succeed(holder).await, None, "{holder:?}");
            assert_eq!(desk.end(queue_store::Ending { holder, ..failed(&held[0]) }).await, None, "{holder:?}");
        }
        assert_eq!(desk.look_up(&wrong).await, [Past::Lost; 5]);
        assert_eq!(db.number("select count(*) from fencepost.lease").await, 2);
        assert_eq!(db.number("select count(*) from fencepost.attempt_log").await, 0);
        assert!(desk.succeed(right).await.is_some(), "the holder's right is untouched");
    })
    .await;
}

#[tokio::test]
async fn guessed_tokens_settle_nothing_without_the_session() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(1).await;
        let (owner, stranger) = (desk.session().await, desk.session().await);
        db.run("select setval('fencepost.token_seq', 5000)").await;
        let held = desk.claim_one(owner).await;
        let base = held.token.get();
        let mut guesses: Vec<Holder> = (base - 50..base + 50)
            .map(|token| Holder {
                token: Token::try_from(token).expect("positive"),
                session_no: stranger.session_no,
                job: held.job,
            })
            .collect();
        guesses.sort_unstable();
        let rows: Vec<_> = guesses.iter().map(|&holder| Succeeding { holder, result: None, effect: None }).collect();
        let mut conn = desk.store.hot().await.expect("connects");
        let settled = queue_store::settle_succeeded(&mut conn, &rows).await.expect("answers");
        assert!(settled.iter().all(Option::is_none));
        drop(conn);
        assert!(desk.succeed(holder(&held)).await.is_some());
    })
    .await;
}

#[tokio::test]
async fn settlement_that_comes_again_is_looked_up_as_settled() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(4).await;
        let owner = desk.session().await;
        let held = desk.claim(&[(owner, 4)]).await;
        let ends = [AttemptEnd::Failed, AttemptEnd::Released, AttemptEnd::Snoozed];
        for (job, end) in held.iter().zip(ends) {
            assert!(desk.end(ending(job, end)).await.is_some());
            assert!(desk.end(ending(job, end)).await.is_none(), "a repetition changes nothing");
        }
        assert!(desk.succeed(holder(&held[3])).await.is_some());
        assert_eq!(desk.succeed(holder(&held[3])).await, None);
        let holders: Vec<Holder> = held.iter().map(holder).collect();
        assert_eq!(desk.look_up(&holders).await, [Past::Settled; 4]);
    })
    .await;
}

#[tokio::test]
async fn late_settle_is_fenced_after_regrant() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let id = desk.add(keyed("k", "p")).await;
        let (stale, fresh) = (desk.session().await, desk.session().await);
        let old = desk.claim_one(stale).await;
        let warden = desk.warden().await;
        assert_eq!(desk.lose(stale, warden).await.leases, 1);
        let new = desk.claim_one(fresh).await;
        assert!(new.token > old.token);

        let row = Succeeding { holder: holder(&old), result: Some(b"old"), effect: Some(b"old") };
        assert_eq!(desk.succeed_with(row).await, None);
        assert_eq!(desk.end(failed(&old)).await, None);
        assert_eq!(desk.look_up(&[holder(&old)]).await, [Past::Lost]);
        assert_eq!(desk.look(id).await.state, JobState::Leased);

        let row = Succeeding { holder: holder(&new), result: Some(b"new"), effect: Some(b"new") };
        assert_eq!(desk.succeed_with(row).await, Some(SettledEffect::Applied));
        let seen = desk.look(id).await;
        assert_eq!((seen.result.as_deref(), seen.effect.as_deref()), (Some(&b"new"[..]), Some(&b"new"[..])));
    })
    .await;
}

#[tokio::test]
async fn regrant_to_the_same_session_fences_its_own_older_lease() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add(job("p")).await;
        let owner = desk.session().await;
        let old = desk.claim_one(owner).await;
        desk.end(ending(&old, AttemptEnd::Released)).await.expect("given back");
        let new = desk.claim_one(owner).await;
        assert_eq!(desk.succeed(holder(&old)).await, None);
        assert!(desk.succeed(holder(&new)).await.is_some());
    })
    .await;
}

#[tokio::test]
async fn expired_but_unreaped_lease_is_still_settled_by_its_holder() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let ids = desk.add_many(2).await;
        let owner = desk.session().await;
        let held = desk.claim(&[(owner, 2)]).await;
        db.expire_session(owner.session_no).await;
        assert!(desk.succeed(holder(&held[0])).await.is_some());
        // Also once the session is dead: the row decides, and it is there until it is taken back.
        let warden = desk.warden().await;
        assert_eq!(desk.expire(warden).await.expect("the warden").sessions.len(), 1);
        assert!(desk.succeed(holder(&held[1])).await.is_some());
        assert_eq!(desk.reap(warden, 10).await.expect("the warden").leases, 0);
        assert_eq!(desk.look(ids[1]).await.state, JobState::Succeeded);
    })
    .await;
}

#[tokio::test]
async fn one_of_two_that_settle_the_same_lease_at_once_is_applied() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(50).await;
        let owner = desk.session().await;
        for held in desk.claim(&[(owner, 50)]).await {
            let (success, failure) = tokio::join!(desk.succeed(holder(&held)), desk.end(failed(&held)));
            assert!(success.is_some() != failure.is_some(), "{success:?} {failure:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn stale_rows_of_a_batch_hold_back_none_of_their_neighbours() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(6).await;
        let owner = desk.session().await;
        let mut holders: Vec<Holder> = desk.claim(&[(owner, 6)]).await.iter().map(holder).collect();
        holders.sort_unstable();
        assert!(desk.succeed(holders[2]).await.is_some());
        let rows: Vec<_> = holders.iter().map(|&holder| Succeeding { holder, result: None, effect: None }).collect();
        let mut conn = desk.store.hot().await.expect("connects");
        let settled = queue_store::settle_succeeded(&mut conn, &rows).await.expect("settles");
        let applied: Vec<bool> = settled.iter().map(Option::is_some).collect();
        assert_eq!(applied, [true, true, false, true, true, true]);
    })
    .await;
}

#[tokio::test]
async fn settlement_that_was_rolled_back_can_be_made_again() {
    db_test(async |db| {
        use sqlx::Connection;
        let desk = Desk::open(db).await;
        desk.add(keyed("k", "p")).await;
        let owner = desk.session().await;
        let held = desk.claim_one(owner).await;
        let row = Succeeding { holder: holder(&held), result: None, effect: Some(b"e") };
        let mut conn = desk.store.hot().await.expect("connects");
        let mut tx = conn.begin().await.expect("begins");
        assert_eq!(
            queue_store::settle_succeeded(&mut tx, &[row]).await.expect("settles"),
            [Some(SettledEffect::Applied)]
        );
        tx.rollback().await.expect("rolls back");
        drop(conn);
        assert_eq!(desk.look_up(&[holder(&held)]).await, [Past::Lost]);
        assert_eq!(desk.succeed_with(row).await, Some(SettledEffect::Applied));
    })
    .await;
}
