//! What a scheduler takes back on its own account: only for sessions it serves.

use queue_core::{AttemptEnd, Counters, JobState, MAX_UNDELIVERED};
use queue_store::{Owner, Past};
use testbed::db_test;

use crate::fixture::{Desk, ending, hello, holder, job, unheld};

#[tokio::test]
async fn undelivered_grant_costs_nothing_and_goes_back_to_the_front() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let ids = desk.add_many(3).await;
        let owner = desk.session().await;
        let held = desk.claim_one(owner).await;
        assert_eq!(desk.take_back(&[unheld(&held, owner)], AttemptEnd::Undelivered).await, 1);
        let seen = desk.look(ids[0]).await;
        assert_eq!((seen.state, seen.used.attempts, seen.used.lease_losses), (JobState::Ready, 0, 0));
        assert_eq!(seen.attempts[0].end, AttemptEnd::Undelivered);
        assert_eq!(desk.claim_one(owner).await.job, ids[0]);
        assert_eq!(desk.succeed(holder(&held)).await, None, "a grant that was taken back settles nothing");
        assert_eq!(desk.look_up(&[holder(&held)]).await, [Past::Lost]);
    })
    .await;
}

#[tokio::test]
async fn undelivered_grants_in_a_row_are_bounded() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let id = desk.add(job("poison")).await;
        let owner = desk.session().await;
        for n in 0..MAX_UNDELIVERED {
            let held = desk.claim_one(owner).await;
            assert_eq!(held.used, Counters { undelivered: n, ..Counters::default() });
            assert_eq!(desk.take_back(&[unheld(&held, owner)], AttemptEnd::Undelivered).await, 1);
        }
        let seen = desk.look(id).await;
        assert_eq!((seen.state, seen.dead_reason.as_deref()), (JobState::Dead, Some("undeliverable")));
        assert_eq!(seen.attempts.len(), MAX_UNDELIVERED as usize);
    })
    .await;
}

#[tokio::test]
async fn grant_that_arrived_starts_the_count_anew() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let id = desk.add(job("p")).await;
        let owner = desk.session().await;
        for _ in 0..3 {
            for _ in 1..MAX_UNDELIVERED {
                let held = desk.claim_one(owner).await;
                desk.take_back(&[unheld(&held, owner)], AttemptEnd::Undelivered).await;
            }
            let held = desk.claim_one(owner).await;
            desk.end(ending(&held, AttemptEnd::Released)).await.expect("settles");
        }
        assert_eq!(desk.look(id).await.state, JobState::Ready);
    })
    .await;
}

#[tokio::test]
async fn lease_that_outlived_its_timeout_uses_an_attempt() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let id = desk.add(job("p")).await;
        let owner = desk.session().await;
        let held = desk.claim_one(owner).await;
        assert_eq!(desk.take_back(&[unheld(&held, owner)], AttemptEnd::TimedOut).await, 1);
        let seen = desk.look(id).await;
        assert_eq!((seen.state, seen.used.attempts, seen.used.lease_losses), (JobState::Scheduled, 1, 0));
        assert_eq!(seen.attempts[0].end, AttemptEnd::TimedOut);
    })
    .await;
}

#[tokio::test]
async fn old_owner_takes_nothing_back_after_it_was_replaced() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let other = Desk::on(db, db.another_store()).await;
        desk.add_many(1).await;
        let worker = hello();
        let old = desk.greet(&worker).await;
        let held = desk.claim_one(old).await;
        let new = other.greet(&worker).await;
        for wrong in [
            old,
            Owner { epoch: new.epoch, ..old },
            Owner { scheduler: new.scheduler, ..old },
            Owner { session_no: new.session_no + 1, ..new },
        ] {
            assert_eq!(desk.take_back(&[unheld(&held, wrong)], AttemptEnd::Undelivered).await, 0, "{wrong:?}");
        }
        assert_eq!(db.number("select count(*) from fencepost.lease").await, 1);
        assert_eq!(other.take_back(&[unheld(&held, new)], AttemptEnd::Undelivered).await, 1);
    })
    .await;
}

#[tokio::test]
async fn lease_that_was_settled_or_granted_again_is_not_taken_back() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(2).await;
        let owner = desk.session().await;
        let held = desk.claim(&[(owner, 2)]).await;
        desk.succeed(holder(&held[0])).await.expect("settles");
        desk.end(ending(&held[1], AttemptEnd::Released)).await.expect("settles");
        let again = desk.claim_one(owner).await;
        let mut rows = [unheld(&held[0], owner), unheld(&held[1], owner)];
        rows.sort_unstable();
        assert_eq!(desk.take_back(&rows, AttemptEnd::Undelivered).await, 0);
        assert!(desk.succeed(holder(&again)).await.is_some());
    })
    .await;
}
