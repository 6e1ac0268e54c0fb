//! Jobs that are leased by the very statement that stores them.

use std::time::Duration;

use queue_core::{Headers, JobState, RetryOverrides, Start};
use queue_store::{Claimed, Enqueued, Owner, enqueue_for};
use testbed::db_test;

use crate::fixture::{Desk, hello, holder, job, keyed, new_job};

/// Enqueues plain jobs for these slots.
async fn enqueue(desk: &Desk<'_>, slots: &[Owner]) -> (Vec<Enqueued>, Vec<Claimed>) {
    let rows = desk.rows(&vec![job("p"); slots.len()]).await;
    let mut conn = desk.store.enqueue().await.expect("connects");
    enqueue_for(&mut conn, &rows, slots).await.expect("enqueues")
}

#[tokio::test]
async fn job_with_a_free_slot_is_leased_in_the_statement_that_stores_it() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let (a, b) = (desk.session().await, desk.session().await);
        let (answers, leased) = enqueue(&desk, &[a, b, a]).await;
        assert!(answers.iter().all(|answer| matches!(answer, Enqueued::New(_))));
        desk.add_many(2).await;
        assert_eq!(
            leased.iter().map(|job| job.session_no).collect::<Vec<_>>(),
            [a, b, a].map(|owner| owner.session_no)
        );
        assert!(leased.is_sorted_by_key(|job| job.token));
        let same =
            "select count(*) from fencepost.lease l join fencepost.job j on j.job_id = l.job_id and j.xmin = l.xmin";
        assert_eq!(db.number(same).await, 3);
        let rest = desk.claim(&[(a, 10)]).await;
        assert_eq!(rest.len(), 2, "those without slots are ready");
        assert!(leased.iter().all(|job| job.token < rest[0].token), "a later claim has a larger token");
        for job in leased.iter().chain(&rest) {
            assert!(desk.succeed(holder(job)).await.is_some());
        }
    })
    .await;
}

#[tokio::test]
async fn job_leased_at_once_is_granted_as_a_claim_would_grant_it() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let owner = desk.session().await;
        let mut full = job("p");
        full.headers = Headers::new([("a".to_owned(), "b".to_owned())].into_iter().collect()).expect("valid");
        full.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
        full.timeout = Some(Duration::from_millis(1_234));
        full.retry = RetryOverrides { max_attempts: Some(7), ..RetryOverrides::default() };
        for (n, mut job) in [job("p"), full].into_iter().enumerate() {
            let mut grants = Vec::new();
            for (name, slots) in [("one", &[owner][..]), ("two", &[])] {
                job.key = keyed(&format!("{name}-{n}"), "p").key;
                let rows = desk.rows(&[job.clone()]).await;
                let mut conn = desk.store.enqueue().await.expect("connects");
                let (_, leased) = enqueue_for(&mut conn, &rows, slots).await.expect("enqueues");
                grants.push(if slots.len() == 1 { leased } else { desk.claim(&[(owner, 1)]).await }.remove(0));
            }
            let what = |job: &Claimed| {
                let Claimed { lane, used, payload, headers, traceparent, timeout, max_attempts, .. } = job.clone();
                (lane, used, payload, headers, traceparent, timeout, max_attempts)
            };
            assert_eq!(what(&grants[0]), what(&grants[1]));
            assert_eq!(grants[0].key, Some(format!("one-{n}")));
            assert_eq!(grants[0].position, grants[0].job.get());
            let sizes = "select count(distinct size) from fencepost.lease";
            assert_eq!(db.number(sizes).await, 1, "bytes of payload and headers are counted alike");
            for grant in &grants {
                assert!(desk.succeed(holder(grant)).await.is_some());
            }
        }
    })
    .await;
}

#[tokio::test]
async fn slot_of_a_session_that_is_dead_or_served_elsewhere_gets_nothing() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let other = Desk::on(db, db.another_store()).await;
        let worker = hello();
        let old = desk.greet(&worker).await;
        let new = other.greet(&worker).await;
        let dead = desk.session().await;
        db.expire_session(dead.session_no).await;
        let warden = desk.warden().await;
        assert_eq!(desk.expire(warden).await.expect("the warden").sessions.len(), 1);
        let half = Owner { epoch: new.epoch, ..old };
        let (_, leased) = enqueue(&desk, &[old, dead, half]).await;
        assert!(leased.is_empty());
        other.lane(&job("p")).await;
        assert_eq!(other.claim(&[(new, 10)]).await.len(), 3, "they wait for others");
    })
    .await;
}

#[tokio::test]
async fn job_that_is_not_due_or_whose_key_is_taken_needs_no_slot() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let owner = desk.session().await;
        let mut later = job("p");
        later.start = Start::After(Duration::from_hours(1));
        let known = desk.add(keyed("k", "p")).await;
        let rows = desk.rows(&[later, keyed("k", "p"), keyed("k", "p")]).await;
        let mut conn = desk.store.enqueue().await.expect("connects");
        let (answers, leased) = enqueue_for(&mut conn, &rows, &[owner; 3]).await.expect("enqueues");
        assert!(leased.is_empty());
        assert_eq!(desk.look(new_job(&answers[0])).await.state, JobState::Scheduled);
        assert_eq!(answers[1..], [Enqueued::Existing(known); 2]);
        assert_eq!(
            db.number("select is_called::integer::bigint from fencepost.token_seq").await,
            0,
            "no token was drawn"
        );
    })
    .await;
}
