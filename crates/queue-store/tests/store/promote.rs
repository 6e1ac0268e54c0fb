//! Promotion: what is due becomes ready, once, the longest due first.

use std::time::Duration;

use queue_core::{JobId, JobState, Start};
use sqlx::Connection;
use testbed::db_test;

use crate::fixture::{Desk, job, job_of, new_job};

async fn later(desk: &Desk<'_>, count: u64) -> Vec<JobId> {
    let jobs: Vec<_> = (0..count)
        .map(|n| {
            let mut job = job("p");
            job.start = Start::After(Duration::from_secs(3_600 - n));
            job
        })
        .collect();
    desk.enqueue(&jobs).await.iter().map(new_job).collect()
}

#[tokio::test]
async fn nothing_is_promoted_before_it_is_due_and_the_next_time_is_told() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        assert_eq!(desk.promote(10).await.next_due, None);
        later(&desk, 3).await;
        let promoted = desk.promote(10).await;
        assert_eq!(promoted.count, 0);
        let next = promoted.next_due.expect("something is scheduled").as_secs();
        assert!((3_500..=3_598).contains(&next), "{next} s");
    })
    .await;
}

#[tokio::test]
async fn longest_due_goes_first_and_the_limit_holds() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let mut ids = later(&desk, 5).await;
        db.run("update fencepost.scheduled set due_at = due_at - interval '2 hours'").await;
        ids.reverse();
        let promoted = desk.promote(2).await;
        assert_eq!((promoted.count, promoted.hints.len()), (2, 1));
        assert_eq!(promoted.next_due, Some(Duration::ZERO), "more is due already");
        let owner = desk.session().await;
        let mut first: Vec<JobId> = desk.claim(&[(owner, 10)]).await.iter().map(|job| job.job).collect();
        first.sort_unstable();
        let mut expected = ids[..2].to_vec();
        expected.sort_unstable();
        assert_eq!(first, expected);
        assert_eq!(desk.promote(10).await.count, 3);
        assert_eq!(desk.promote(10).await.next_due, None);
    })
    .await;
}

#[tokio::test]
async fn lanes_that_got_jobs_are_told() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let mut jobs = [job("a"), job_of("mail", "sort", "b"), job_of("fax", "send", "c"), job("d")];
        for job in &mut jobs {
            job.start = Start::After(Duration::from_mins(1));
        }
        desk.enqueue(&jobs).await;
        let promoted = desk.promote_all().await;
        assert_eq!((promoted.count, promoted.hints.len()), (4, 3));
    })
    .await;
}

#[tokio::test]
async fn schedulers_that_promote_at_once_promote_each_job_once() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let ids = later(&desk, 500).await;
        db.make_due().await;
        let (a, b, c) = tokio::join!(desk.promote(400), desk.promote(400), desk.promote(400));
        let rest = desk.promote(1_000).await.count;
        assert_eq!(a.count + b.count + c.count + rest, 500);
        for id in [ids[0], ids[499]] {
            assert_eq!(desk.look(id).await.state, JobState::Ready);
        }
    })
    .await;
}

#[tokio::test]
async fn what_another_scheduler_has_locked_is_skipped() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        later(&desk, 5).await;
        db.make_due().await;
        let mut conn = desk.store.enqueue().await.expect("connects");
        let mut tx = conn.begin().await.expect("begins");
        assert_eq!(queue_store::promote(&mut tx, 2, None).await.expect("promotes").count, 2);
        assert_eq!(desk.promote(10).await.count, 3);
        tx.rollback().await.expect("rolls back");
        drop(conn);
        assert_eq!(desk.promote(10).await.count, 2);
    })
    .await;
}
