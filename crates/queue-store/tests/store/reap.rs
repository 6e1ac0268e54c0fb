//! The reaper's statements: what is expired by the database's clock is taken back, by one warden at a time.

use queue_core::{AttemptEnd, JobState, RetryOverrides};
use queue_store::{Renewal, Warden, finish_pass, note_pass, register_scheduler, release_maintenance, renew};
use sqlx::Connection;
use std::time::Duration;
use testbed::{PATIENCE, db_test, eventually};

use crate::fixture::{Desk, GAP, LOWS, TTL, failed, hello, holder, job};

#[tokio::test]
async fn crashed_workers_job_becomes_claimable_after_expiry() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let id = desk.add(job("p")).await;
        let owner = desk.session().await;
        let held = desk.claim_one(owner).await;
        let warden = desk.warden().await;
        assert_eq!(desk.expire(warden).await.expect("the warden").sessions.len(), 0, "not expired yet");
        assert_eq!(desk.reap(warden, 10).await.expect("the warden").leases, 0);

        let reaped = desk.lose(owner, warden).await;
        assert_eq!((reaped.leases, reaped.dead.len(), reaped.lanes), (1, 0, vec![held.lane]));
        let seen = desk.look(id).await;
        assert_eq!((seen.state, seen.used.attempts, seen.used.lease_losses), (JobState::Ready, 1, 1));
        assert_eq!((seen.attempts[0].end, seen.attempts[0].code.as_deref()), (AttemptEnd::Lost, Some("worker_lost")));
        assert!(seen.attempts[0].error.as_deref().is_some_and(|text| text.contains("session expired")));
        let other = desk.session().await;
        let again = desk.claim_one(other).await;
        assert!(again.token > held.token);
    })
    .await;
}

#[tokio::test]
async fn lag_of_the_latest_is_reported() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let (a, b) = (desk.session().await, desk.session().await);
        db.age_session(a.session_no, TTL + Duration::from_secs(30)).await;
        db.age_session(b.session_no, TTL + Duration::from_secs(3)).await;
        let warden = desk.warden().await;
        let expired = desk.expire(warden).await.expect("the warden");
        assert_eq!((expired.sessions.len(), expired.held_back), (2, false));
        assert!((30..40).contains(&expired.lag().as_secs()), "{:?}", expired.lag());
    })
    .await;
}

#[tokio::test]
async fn renewal_that_has_just_committed_wins_over_expiry() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let owner = desk.session().await;
        let bystander = desk.session().await;
        db.expire_session(owner.session_no).await;
        db.expire_session(bystander.session_no).await;
        let warden = desk.warden().await;
        let mut conn = desk.store.vital().await.expect("connects");
        let mut tx = conn.begin().await.expect("begins");
        assert_eq!(renew(&mut tx, &[owner], TTL).await.expect("renews"), [Renewal::Renewed]);
        // On its way: skipped, and hides nothing behind it.
        assert_eq!(desk.expire(warden).await.expect("the warden").sessions.len(), 1);
        tx.commit().await.expect("commits");
        assert_eq!(desk.expire(warden).await.expect("the warden").sessions.len(), 0);
        assert_eq!(renew(&mut conn, &[owner], TTL).await.expect("renews"), [Renewal::Renewed]);
        assert_eq!(renew(&mut conn, &[bystander], TTL).await.expect("renews"), [Renewal::Superseded]);
    })
    .await;
}

#[tokio::test]
async fn renewals_and_expiries_that_race_never_contradict_each_other() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let warden = desk.warden().await;
        for _ in 0..30 {
            let owner = desk.session().await;
            db.expire_session(owner.session_no).await;
            let renewing = async {
                let mut conn = desk.store.vital().await.expect("connects");
                renew(&mut conn, &[owner], TTL).await.expect("answers")[0]
            };
            let (renewal, expired) = tokio::join!(renewing, desk.expire(warden));
            let died = expired.expect("the warden").sessions.len() == 1;
            assert_eq!(renewal == Renewal::Renewed, !died, "either it was told that it lives, or it is dead");
        }
    })
    .await;
}

#[tokio::test]
async fn nobody_expires_within_a_lease_time_after_a_silence_of_all_schedulers() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let owner = desk.session().await;
        db.expire_session(owner.session_no).await;
        let warden = desk.warden().await;
        let mut conn = desk.store.vital().await.expect("connects");
        let held_back = async || {
            let expired = desk.expire(warden).await.expect("the warden");
            assert!(expired.sessions.is_empty() || !expired.held_back);
            expired.held_back
        };
        db.silence_schedulers(GAP * 2).await;
        assert!(held_back().await, "while they are silent");
        queue_store::beat(&mut conn, desk.scheduler, GAP).await.expect("beats");
        assert!(held_back().await, "and for a lease time after");
        db.silence_schedulers(GAP * 2).await;
        register_scheduler(&mut conn, "another", GAP).await.expect("registers");
        db.run("update fencepost.scheduler set resumed_at = now() - interval '1 day' where name <> 'another'").await;
        assert!(held_back().await, "also where one that has just started is the first to beat again");
        db.end_grace().await;
        assert!(!held_back().await);
        assert_eq!(db.number("select count(*) from fencepost.worker_session where dead").await, 1);
    })
    .await;
}

#[tokio::test]
async fn second_scheduler_that_starts_brings_no_grace() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        Desk::on(db, db.another_store()).await;
        let owner = desk.session().await;
        db.expire_session(owner.session_no).await;
        let warden = desk.warden().await;
        assert_eq!(desk.expire(warden).await.expect("the warden").sessions.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn leases_that_others_have_locked_are_skipped_and_hide_nothing() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(10).await;
        let owner = desk.session().await;
        let held = desk.claim(&[(owner, 10)]).await;
        let warden = desk.warden().await;
        db.expire_session(owner.session_no).await;
        desk.expire(warden).await.expect("the warden");

        let mut conn = desk.store.hot().await.expect("connects");
        let mut tx = conn.begin().await.expect("begins");
        let mut settling: Vec<_> = held[..6]
            .iter()
            .map(|job| queue_store::Succeeding { holder: holder(job), result: None, effect: None })
            .collect();
        settling.sort_by_key(|row| row.holder);
        queue_store::settle_succeeded(&mut tx, &settling).await.expect("settles");
        assert_eq!(desk.reap(warden, 4).await.expect("the warden").leases, 4, "a full page from behind the locked");
        tx.commit().await.expect("commits");
        assert_eq!(desk.reap(warden, 4).await.expect("the warden").leases, 0);
        assert_eq!(db.number("select count(*) from fencepost.finished").await, 6);
    })
    .await;
}

#[tokio::test]
async fn pages_go_on_until_nothing_is_left() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(25).await;
        let (a, b) = (desk.session().await, desk.session().await);
        desk.claim(&[(a, 20), (b, 5)]).await;
        let warden = desk.warden().await;
        db.expire_session(a.session_no).await;
        desk.expire(warden).await.expect("the warden");
        let mut pages = Vec::new();
        loop {
            pages.push(desk.reap(warden, 8).await.expect("the warden").leases);
            if pages.last() == Some(&0) {
                break;
            }
        }
        assert_eq!(pages, [8, 8, 4, 0], "those of the session that lives are not touched");
    })
    .await;
}

#[tokio::test]
async fn expired_last_attempt_becomes_dead() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let mut last = job("p");
        last.retry = RetryOverrides { max_attempts: Some(1), ..RetryOverrides::default() };
        let id = desk.add(last).await;
        let owner = desk.session().await;
        desk.claim_one(owner).await;
        let warden = desk.warden().await;
        let reaped = desk.lose(owner, warden).await;
        assert_eq!((reaped.leases, reaped.dead.len()), (1, 1));
        let seen = desk.look(id).await;
        assert_eq!((seen.state, seen.dead_reason.as_deref()), (JobState::Dead, Some("attempts_exhausted")));
    })
    .await;
}

#[tokio::test]
async fn job_that_kills_its_workers_is_dead_after_three_though_it_has_attempts_left() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let mut killer = job("p");
        killer.retry = RetryOverrides { max_attempts: Some(100), ..RetryOverrides::default() };
        let id = desk.add(killer).await;
        let warden = desk.warden().await;
        for round in 1..=3 {
            let owner = desk.session().await;
            desk.claim_one(owner).await;
            assert_eq!(desk.lose(owner, warden).await.dead.len(), usize::from(round == 3));
        }
        let seen = desk.look(id).await;
        assert_eq!((seen.used.attempts, seen.used.lease_losses), (3, 3));
        assert_eq!(seen.dead_reason.as_deref(), Some("lease_losses_exhausted"));
    })
    .await;
}

#[tokio::test]
async fn failures_use_no_lease_losses() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let mut patient = job("p");
        patient.retry = RetryOverrides { max_attempts: Some(100), ..RetryOverrides::default() };
        let id = desk.add(patient).await;
        let owner = desk.session().await;
        for _ in 0..5 {
            let held = desk.claim_one(owner).await;
            desk.end(failed(&held)).await.expect("settles");
            desk.promote_all().await;
        }
        desk.claim_one(owner).await;
        let warden = desk.warden().await;
        desk.lose(owner, warden).await;
        let seen = desk.look(id).await;
        assert_eq!((seen.state, seen.used.attempts, seen.used.lease_losses), (JobState::Ready, 6, 1));
    })
    .await;
}

#[tokio::test]
async fn one_of_two_wardens_acts_and_the_other_takes_over() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let first = desk.acquire("one", None).await.expect("free");
        assert_eq!(desk.acquire("two", None).await, None);
        assert_eq!(desk.acquire("one", Some(first)).await, Some(first), "renewed under the same token");
        db.expire_maintenance().await;
        let second = desk.acquire("two", None).await.expect("the first is silent");
        assert!(second.0 > first.0);
        assert_eq!(desk.acquire("one", Some(first)).await, None, "it does not come back by itself");
    })
    .await;
}

#[tokio::test]
async fn maintenance_lease_that_is_given_back_is_free_at_once() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let first = desk.acquire("one", None).await.expect("free");
        let mut conn = desk.store.vital().await.expect("connects");
        assert!(release_maintenance(&mut conn, first).await.expect("answers"));
        let second = desk.acquire("two", None).await.expect("free");
        assert!(!release_maintenance(&mut conn, first).await.expect("answers"), "it is another's now");
        assert!(desk.expire(second).await.is_some());
    })
    .await;
}

#[tokio::test]
async fn wardens_that_race_for_the_lease_are_one() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let (a, b, c) = tokio::join!(desk.acquire("a", None), desk.acquire("b", None), desk.acquire("c", None));
        assert_eq!([a, b, c].into_iter().flatten().count(), 1);
    })
    .await;
}

#[tokio::test]
async fn stale_warden_changes_nothing() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(1).await;
        let owner = desk.session().await;
        desk.claim_one(owner).await;
        db.expire_session(owner.session_no).await;
        let stale = desk.acquire("one", None).await.expect("free");
        db.expire_maintenance().await;
        let mut conn = desk.store.vital().await.expect("connects");
        let refused =
            async |warden: Warden| desk.expire(warden).await.is_none() && desk.reap(warden, 10).await.is_none();
        assert!(refused(stale).await, "its time is over");
        let fresh = desk.acquire("two", None).await.expect("the first is silent");
        assert!(refused(stale).await);
        assert!(refused(Warden(0)).await && refused(Warden(-1)).await && refused(Warden(fresh.0 + 1)).await);
        assert!(!note_pass(&mut conn, stale).await.expect("answers"));
        assert_eq!(db.number("select count(*) from fencepost.worker_session where dead").await, 0);
        assert_eq!(desk.expire(fresh).await.expect("the warden").sessions.len(), 1);
        assert!(desk.reap(stale, 10).await.is_none());
        assert_eq!(desk.reap(fresh, 10).await.expect("the warden").leases, 1);
    })
    .await;
}

#[tokio::test]
async fn maintenance_is_handed_over_only_between_two_pages() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let first = desk.acquire("one", None).await.expect("free");
        let mut conn = desk.store.hot().await.expect("connects");
        let mut tx = conn.begin().await.expect("begins");
        queue_store::reap_page(&mut tx, first, 10, LOWS).await.expect("answers").expect("the warden");
        let take_over = async {
            db.expire_maintenance().await;
            desk.acquire("two", None).await
        };
        let end_page = async {
            eventually(PATIENCE, "the other waits", async || {
                db.number("select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'").await == 1
            })
            .await;
            tx.commit().await.expect("commits");
        };
        let (second, ()) = tokio::join!(take_over, end_page);
        assert!(second.is_some());
    })
    .await;
}

#[tokio::test]
async fn pass_ends_once_no_dead_session_holds_a_lease() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(1).await;
        let owner = desk.session().await;
        desk.claim(&[(owner, 1)]).await;
        let warden = desk.warden().await;
        let mut conn = desk.store.vital().await.expect("connects");
        let passed_ago = async || {
            let mut conn = desk.store.hot().await.expect("connects");
            queue_store::look_out(&mut conn, &[]).await.expect("looks").passed_ago
        };
        db.expire_session(owner.session_no).await;
        let expired = desk.expire(warden).await.expect("the warden").sessions;
        assert_eq!((expired.len(), expired[0].leases, &*expired[0].worker), (1, 1, "worker-1"));
        assert_eq!(finish_pass(&mut conn, warden, true).await.expect("answers"), Some(false));
        assert_eq!(passed_ago().await, None, "there is something to reap, so it has not ended");
        desk.reap(warden, 10).await.expect("still the warden");
        assert_eq!(finish_pass(&mut conn, warden, false).await.expect("answers"), Some(true));
        assert!(passed_ago().await.expect("a pass") < Duration::from_secs(10));
        assert_eq!(finish_pass(&mut conn, warden, true).await.expect("answers"), Some(true));
        assert!(desk.acquire("another", None).await.is_some(), "it was given back");
        assert_eq!(finish_pass(&mut conn, warden, true).await.expect("answers"), None, "and is lost");
    })
    .await;
}

#[tokio::test]
async fn session_taken_up_again_before_it_is_marked_lives_on() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let worker = hello();
        let owner = desk.greet(&worker).await;
        db.expire_session(owner.session_no).await;
        desk.greet(&worker).await;
        let warden = desk.warden().await;
        assert_eq!(desk.expire(warden).await.expect("the warden").sessions.len(), 0);
    })
    .await;
}
