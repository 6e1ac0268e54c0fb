//! Sessions: who serves them, how long they live, and that death is final.

use std::time::Duration;

use queue_store::{Holder, Owner, Renewal, Session, close_session, held_leases, overdue_leases, renew, still_held};
use sqlx::Connection;
use testbed::{PATIENCE, db_test, eventually};

use crate::fixture::{Desk, GAP, TTL, hello, holder, job};

async fn renewed(desk: &Desk<'_>, owners: &[Owner]) -> Vec<Renewal> {
    let mut conn = desk.store.vital().await.expect("connects");
    renew(&mut conn, owners, TTL).await.expect("answers")
}

#[tokio::test]
async fn hello_again_raises_the_epoch_and_keeps_the_leases() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(1).await;
        let worker = hello();
        let first = desk.greet(&worker).await;
        let held = desk.claim_one(first).await;
        let second = desk.greet(&worker).await;
        assert_eq!(second, Owner { epoch: first.epoch + 1, ..first });
        assert!(desk.succeed(holder(&held)).await.is_some(), "tokens fence workers, the epoch fences schedulers");
        assert_eq!(db.number("select count(*) from fencepost.worker").await, 1);
    })
    .await;
}

#[tokio::test]
async fn another_process_under_the_same_name_is_another_session() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let (first, second) = (desk.session().await, desk.session().await);
        assert_ne!(first.session_no, second.session_no);
        assert_eq!(second.epoch, 1);
    })
    .await;
}

#[tokio::test]
async fn renewal_of_an_old_epoch_or_owner_is_superseded() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let other = Desk::on(db, db.another_store()).await;
        let worker = hello();
        let old = desk.greet(&worker).await;
        let bystander = desk.session().await;
        let new = other.greet(&worker).await;
        let mut owners = [old, new, bystander];
        owners.sort_unstable();
        let expected: Vec<Renewal> =
            owners.iter().map(|&owner| if owner == old { Renewal::Superseded } else { Renewal::Renewed }).collect();
        assert_eq!(renewed(&desk, &owners).await, expected);
        assert_eq!(renewed(&desk, &[Owner { scheduler: new.scheduler, ..old }]).await, [Renewal::Superseded]);
    })
    .await;
}

#[tokio::test]
async fn renewal_lasts_a_full_lease_time_by_the_clock_of_the_database() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let owner = desk.session().await;
        db.expire_session(owner.session_no).await;
        assert_eq!(renewed(&desk, &[owner]).await, [Renewal::Renewed], "not dead yet, so it lives on");
        let left = "select (extract(epoch from expires_at - now()) * 1000)::bigint from fencepost.worker_session";
        let left = db.number(left).await;
        assert!((14_000..=15_000).contains(&left), "{left} ms");
    })
    .await;
}

#[tokio::test]
async fn death_of_a_session_is_final() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let worker = hello();
        let owner = desk.greet(&worker).await;
        let warden = desk.warden().await;
        desk.lose(owner, warden).await;
        assert_eq!(renewed(&desk, &[owner]).await, [Renewal::Superseded]);
        assert_eq!(desk.greeted(&worker).await, Session::Expired);
        assert_eq!(db.number("select count(*) from fencepost.worker_session where not dead").await, 0);
    })
    .await;
}

#[tokio::test]
async fn two_first_hellos_of_one_session_at_the_same_time_are_both_welcome() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let worker = hello();
        let mut conn = desk.store.vital().await.expect("connects");
        let mut tx = conn.begin().await.expect("begins");
        // Inside of a transaction, so that the second comes while the first is on its way to the disk.
        let first = queue_store::hello(&mut tx, desk.scheduler, &worker, TTL).await.expect("answers");
        let second = {
            let (store, scheduler, worker) = (desk.store.clone(), desk.scheduler, worker.clone());
            tokio::spawn(async move {
                let mut conn = store.vital().await.expect("connects");
                queue_store::hello(&mut conn, scheduler, &worker, TTL).await.expect("answers")
            })
        };
        eventually(PATIENCE, "the second waits for the first", async || {
            db.number(
                "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
            )
            .await
                == 1
        })
        .await;
        tx.commit().await.expect("commits");
        let Session::Open(first) = first else { panic!("nobody was there before") };
        assert_eq!(second.await.expect("no panic"), Session::Open(Owner { epoch: first.epoch + 1, ..first }));
    })
    .await;
}

#[tokio::test]
async fn session_is_closed_only_by_who_serves_it() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let worker = hello();
        let old = desk.greet(&worker).await;
        let new = desk.greet(&worker).await;
        let mut conn = desk.store.vital().await.expect("connects");
        assert!(!close_session(&mut conn, old).await.expect("answers"), "an old stream does not touch the new one");
        assert!(close_session(&mut conn, new).await.expect("answers"));
        assert!(!close_session(&mut conn, new).await.expect("answers"));
        drop(conn);
        assert_eq!(desk.greeted(&worker).await, Session::Expired);
        assert_eq!(renewed(&desk, &[new]).await, [Renewal::Superseded]);
    })
    .await;
}

#[tokio::test]
async fn leases_of_a_closed_session_are_taken_back_at_once() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(1).await;
        let owner = desk.session().await;
        desk.claim_one(owner).await;
        let mut conn = desk.store.vital().await.expect("connects");
        close_session(&mut conn, owner).await.expect("answers");
        let warden = desk.warden().await;
        assert_eq!(desk.reap(warden, 10).await.expect("the warden").leases, 1);
    })
    .await;
}

#[tokio::test]
async fn held_leases_are_listed_with_their_age_and_whether_they_are_overdue() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let mut short = job("short");
        short.timeout = Some(Duration::from_secs(5));
        desk.enqueue(&[short, job("long")]).await;
        let (owner, other) = (desk.session().await, desk.session().await);
        let held = desk.claim(&[(owner, 2)]).await;
        for lease in &held {
            db.age_lease(lease.job, Duration::from_secs(12)).await;
        }
        let mut conn = desk.store.vital().await.expect("connects");
        let sessions = [owner.session_no, other.session_no];
        let mut leases = held_leases(&mut conn, &sessions).await.expect("reads");
        leases.sort_by_key(|lease| lease.job);
        assert_eq!(leases.iter().map(|lease| lease.token).collect::<Vec<_>>(), [held[0].token, held[1].token]);
        assert!(leases.iter().all(|lease| (12..20).contains(&lease.age.as_secs())));
        let overdue = overdue_leases(&mut conn, &leases, Duration::from_secs(5)).await.expect("reads");
        assert_eq!(overdue.iter().map(|lease| lease.token).collect::<Vec<_>>(), [held[0].token]);
        assert!((7..15).contains(&overdue[0].by.as_secs()), "{overdue:?}");
        let overdue = overdue_leases(&mut conn, &leases, Duration::from_secs(10)).await.expect("reads");
        assert_eq!(overdue, [], "within the allowance");
    })
    .await;
}

#[tokio::test]
async fn leases_that_are_named_are_told_apart_by_job_token_and_session() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(3).await;
        let (owner, other) = (desk.session().await, desk.session().await);
        let held: Vec<Holder> = desk.claim(&[(owner, 3)]).await.iter().map(holder).collect();
        let session = Holder { session_no: other.session_no, ..held[0] };
        let token = Holder { token: held[2].token, ..held[1] };
        let mut conn = desk.store.vital().await.expect("connects");
        let named = [session, token, held[2]];
        let leases = still_held(&mut conn, &named).await.expect("reads");
        let found = leases.iter().map(|lease| (lease.session_no, lease.job, lease.token)).collect::<Vec<_>>();
        assert_eq!(found, [(owner.session_no, held[2].job, held[2].token)]);
        assert!(leases[0].age < Duration::from_mins(1));
    })
    .await;
}

#[tokio::test]
async fn scheduler_hears_of_the_others_and_notes_a_silence_of_all() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let other = Desk::on(db, db.another_store()).await;
        let mut conn = desk.store.vital().await.expect("connects");
        let mut beat = async || queue_store::beat(&mut conn, desk.scheduler, GAP).await.expect("beats");
        assert_eq!(beat().await, 1);
        db.end_grace().await;
        let resumed = "select count(*) from fencepost.scheduler where resumed_at > now() - interval '1 hour'";
        beat().await;
        assert_eq!(db.number(resumed).await, 0, "no silence, no grace");
        db.silence_schedulers(GAP * 2).await;
        assert_eq!(beat().await, 0);
        assert_eq!(db.number(resumed).await, 1);
        drop(other);
    })
    .await;
}

#[tokio::test]
async fn scheduler_whose_row_is_gone_is_told_to_restart() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let mut conn = desk.store.vital().await.expect("connects");
        queue_store::retire_scheduler(&mut conn, desk.scheduler).await.expect("retires");
        let gone = queue_store::beat(&mut conn, desk.scheduler, GAP).await.expect_err("no row");
        assert!(gone.to_string().contains("restart it"), "{gone}");
    })
    .await;
}
