//! Looking for what nobody told.

use std::time::Duration;

use queue_core::Start;
use queue_store::{look_out, promote};
use testbed::db_test;

use crate::fixture::{Desk, job, job_of};

#[tokio::test]
async fn looking_finds_the_lanes_that_hold_something_above_their_marks() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.enqueue(&[job("p"), job_of("fax", "send", "p")]).await;
        let empty = desk.lane(&job_of("mail", "nothing", "p")).await;
        let (mail, fax) = (desk.lane(&job("p")).await, desk.lane(&job_of("fax", "send", "p")).await);
        let mut conn = desk.store.hot().await.expect("connects");
        let seen = look_out(&mut conn, &[(mail, 0), (empty, 0), (fax, 0)]).await.expect("looks");
        assert_eq!(seen.ready, [mail, fax]);
        assert_eq!(look_out(&mut conn, &[(mail, i64::MAX), (fax, 0)]).await.expect("looks").ready, [fax]);
        assert!(look_out(&mut conn, &[]).await.expect("looks").ready.is_empty());
    })
    .await;
}

#[tokio::test]
async fn looking_tells_how_much_is_registered_and_when_the_next_job_is_due() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let mut conn = desk.store.hot().await.expect("connects");
        let seen = look_out(&mut conn, &[]).await.expect("looks");
        assert_eq!((seen.next_due, seen.passed_ago), (None, None));
        let before = seen.registered;
        let mut later = job_of("fax", "send", "p");
        later.start = Start::After(Duration::from_hours(1));
        desk.enqueue(&[later]).await;
        let seen = look_out(&mut conn, &[]).await.expect("looks");
        assert_eq!(seen.registered, desk.registry.size());
        assert_eq!((seen.registered.queues - before.queues, seen.registered.lanes - before.lanes), (1, 1));
        assert!((3_500..=3_600).contains(&seen.next_due.expect("one is scheduled").as_secs()));
        db.run("update fencepost.scheduled set due_at = now() - interval '2 seconds'").await;
        assert_eq!(look_out(&mut conn, &[]).await.expect("looks").next_due, Some(Duration::ZERO));
    })
    .await;
}

#[tokio::test]
async fn promotion_of_what_became_due_lately_leaves_the_rest_to_a_full_one() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let mut later = job("p");
        later.start = Start::After(Duration::from_hours(1));
        desk.enqueue(&[later.clone(), later]).await;
        db.run(
            "update fencepost.scheduled set due_at = now() - interval '5 minutes'
            where job_id = (select min(job_id) from fencepost.scheduled)",
        )
        .await;
        db.run(
            "update fencepost.scheduled set due_at = now() - interval '10 seconds'
            where job_id = (select max(job_id) from fencepost.scheduled)",
        )
        .await;
        let mut conn = desk.store.enqueue().await.expect("connects");
        assert_eq!(promote(&mut conn, 10, Some(Duration::from_mins(2))).await.expect("promotes").count, 1);
        assert_eq!(promote(&mut conn, 10, Some(Duration::from_mins(2))).await.expect("promotes").count, 0);
        assert_eq!(promote(&mut conn, 10, None).await.expect("promotes").count, 1);
    })
    .await;
}
