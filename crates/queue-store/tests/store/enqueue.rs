//! Enqueue: nothing twice, nothing lost, answers in order.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use queue_core::{Headers, JobState, Priority, RetryOverrides, Start};
use queue_store::{EnqueueRow, Enqueued};
use sqlx::Connection;
use testbed::{PATIENCE, db_test, eventually};
use tokio::task::JoinSet;

use crate::fixture::{Desk, holder, job, job_of, keyed, new_job};

#[tokio::test]
async fn answers_of_a_batch_are_in_its_order() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let jobs: Vec<_> = (0..1_000).map(|n| job(&format!("{n}"))).collect();
        let answers = desk.enqueue(&jobs).await;
        let ids: HashSet<_> = answers.iter().map(new_job).collect();
        assert_eq!(ids.len(), 1_000, "each job has an id of its own");
        for n in [0, 1, 499, 998, 999] {
            assert_eq!(desk.look(new_job(&answers[n])).await.payload, format!("{n}").into_bytes());
        }
    })
    .await;
}

#[tokio::test]
async fn everything_that_was_set_is_kept() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let mut full = keyed("all", "payload");
        full.headers =
            Headers::new(BTreeMap::from([("name".to_owned(), "wörth \u{1F980}".to_owned())])).expect("valid");
        full.priority = Priority::try_from(9).expect("valid");
        full.timeout = Some(Duration::from_millis(1_500));
        full.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
        full.retry = RetryOverrides {
            max_attempts: Some(7),
            max_lease_losses: Some(2),
            backoff_base: Some(Duration::from_millis(2_500)),
            backoff_factor: Some(1.5),
            backoff_cap: Some(Duration::from_mins(1)),
            jitter: Some(0.25),
        };
        let id = desk.add(full.clone()).await;
        let kept = desk.look(id).await;
        assert_eq!((kept.queue.as_str(), kept.kind.as_str(), kept.priority), ("mail", "send", 9));
        assert_eq!(kept.headers.expect("kept")["name"], "wörth \u{1F980}");
        assert_eq!(kept.key.as_deref(), Some("all"));
        assert_eq!(kept.timeout, Duration::from_millis(1_500));
        assert_eq!(full.retry.over(&kept.policy), kept.policy, "the job's own policy wins");
        assert_eq!((kept.policy.max_attempts, kept.policy.jitter), (7, 0.25));

        let owner = desk.session().await;
        let granted = desk.claim_one(owner).await;
        assert_eq!(granted.traceparent, full.traceparent);
        assert_eq!(granted.timeout, Duration::from_millis(1_500));
        assert_eq!((granted.max_attempts, granted.key.as_deref()), (7, Some("all")));
        assert_eq!(granted.headers.expect("kept")["name"], "wörth \u{1F980}");
    })
    .await;
}

#[tokio::test]
async fn every_byte_may_be_in_a_payload() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let mut every = job("");
        every.payload = (0..=255_u8).collect::<Vec<_>>().into();
        let id = desk.add(every).await;
        assert_eq!(desk.look(id).await.payload, (0..=255_u8).collect::<Vec<_>>());
    })
    .await;
}

#[tokio::test]
async fn first_of_equal_keys_in_a_batch_is_stored_and_the_others_are_the_same_job() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        // Many, so that a sort that does not keep their order shows.
        let jobs: Vec<_> = (0..600).map(|n| keyed(&format!("key-{}", n % 3), "same")).collect();
        let answers = desk.enqueue(&jobs).await;
        let first: Vec<_> = answers[..3].iter().map(new_job).collect();
        for (n, answer) in answers.iter().enumerate().skip(3) {
            assert_eq!(*answer, Enqueued::Existing(first[n % 3]), "row {n}");
        }
        assert_eq!(db.number("select count(*) from fencepost.job").await, 3);
    })
    .await;
}

#[tokio::test]
async fn key_is_the_first_job_also_while_it_runs_and_after_it_finished() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let id = desk.add(keyed("k", "p")).await;
        let again = async || desk.enqueue(&[keyed("k", "p")]).await[0];
        assert_eq!(again().await, Enqueued::Existing(id));
        let owner = desk.session().await;
        let held = desk.claim_one(owner).await;
        assert_eq!(again().await, Enqueued::Existing(id));
        desk.succeed(holder(&held)).await.expect("settles");
        assert_eq!(again().await, Enqueued::Existing(id));
        assert_eq!(desk.look(id).await.state, JobState::Succeeded);
    })
    .await;
}

#[tokio::test]
async fn same_key_with_other_content_is_a_conflict_and_stores_nothing() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let id = desk.add(keyed("k", "p")).await;
        let other_queue = job_of("fax", "send", "p").with_key("k").expect("a key");
        let other_kind = job_of("mail", "drop", "p").with_key("k").expect("a key");
        let answers =
            desk.enqueue(&[keyed("k", "q"), other_queue, other_kind, keyed("k", "p"), job("bystander")]).await;
        assert_eq!(answers[..3], [Enqueued::Conflict(id); 3]);
        assert_eq!(answers[3], Enqueued::Existing(id));
        assert!(matches!(answers[4], Enqueued::New(_)), "its neighbours do not hold a job back");
        assert_eq!(db.number("select count(*) from fencepost.job").await, 2);
    })
    .await;
}

#[tokio::test]
async fn of_two_hundred_racing_callers_with_one_key_one_is_first() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let rows = desk.rows(&[keyed("race", "p")]).await;
        let mut callers = JoinSet::new();
        for _ in 0..200 {
            let (store, rows) = (desk.store.clone(), rows.clone());
            callers.spawn(async move {
                let mut conn = store.enqueue().await.expect("connects");
                queue_store::enqueue(&mut conn, &rows).await.expect("enqueues")[0]
            });
        }
        let answers = callers.join_all().await;
        let new: Vec<_> = answers.iter().filter(|answer| matches!(answer, Enqueued::New(_))).collect();
        assert_eq!(new.len(), 1);
        let id = new_job(new[0]);
        assert_eq!(answers.iter().filter(|answer| **answer == Enqueued::Existing(id)).count(), 199);
    })
    .await;
}

#[tokio::test]
async fn batches_that_race_for_the_same_keys_in_other_orders_do_not_deadlock() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let jobs: Vec<_> = (0..100).map(|n| keyed(&format!("k{n}"), "p")).collect();
        let forward = desk.rows(&jobs).await;
        let backward: Vec<EnqueueRow> = forward.iter().rev().cloned().collect();
        let mut callers = JoinSet::new();
        for n in 0..16 {
            let (store, rows) = (desk.store.clone(), if n % 2 == 0 { forward.clone() } else { backward.clone() });
            callers.spawn(async move {
                let mut conn = store.enqueue().await.expect("connects");
                queue_store::enqueue(&mut conn, &rows).await.expect("enqueues")
            });
        }
        let answers = callers.join_all().await.concat();
        assert_eq!(answers.iter().filter(|answer| matches!(answer, Enqueued::New(_))).count(), 100);
    })
    .await;
}

#[tokio::test]
async fn key_whose_first_caller_rolls_back_goes_to_the_second() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let rows = desk.rows(&[keyed("k", "p")]).await;
        let mut first = desk.store.enqueue().await.expect("connects");
        let mut tx = first.begin().await.expect("begins");
        let lost = queue_store::enqueue(&mut tx, &rows).await.expect("enqueues")[0];

        let store = desk.store.clone();
        let second = tokio::spawn(async move {
            let mut conn = store.enqueue().await.expect("connects");
            queue_store::enqueue(&mut conn, &rows).await.expect("enqueues")[0]
        });
        eventually(PATIENCE, "the second waits for the first", async || {
            db.number(
                "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
            )
            .await
                == 1
        })
        .await;
        tx.rollback().await.expect("rolls back");
        let won = second.await.expect("no panic");
        assert_ne!(new_job(&won), new_job(&lost));
    })
    .await;
}

#[tokio::test]
async fn delay_schedules_and_a_past_time_means_now() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let start = |start| {
            let mut job = job("p");
            job.start = start;
            job
        };
        let in_a_day = db.number("select (extract(epoch from now() + interval '1 day') * 1000000)::bigint").await;
        let answers = desk
            .enqueue(&[
                start(Start::After(Duration::from_hours(1))),
                start(Start::At(in_a_day)),
                start(Start::At(1)),
                start(Start::At(-62_000_000_000_000_000)),
                start(Start::After(Duration::ZERO)),
                start(Start::Now),
            ])
            .await;
        let mut states = Vec::new();
        for answer in &answers {
            states.push(desk.look(new_job(answer)).await.state);
        }
        assert_eq!(states[..2], [JobState::Scheduled; 2]);
        assert_eq!(states[2..], [JobState::Ready; 4]);
        assert_eq!(desk.look(new_job(&answers[1])).await.due_at_us, Some(in_a_day));
        let delay = db.number("select extract(epoch from min(due_at) - now())::bigint from fencepost.scheduled").await;
        assert!((3_500..=3_600).contains(&delay), "{delay}");
        let owner = desk.session().await;
        assert_eq!(desk.claim(&[(owner, 10)]).await.len(), 4, "what is scheduled is not granted");
    })
    .await;
}

#[tokio::test]
async fn longest_delay_and_any_time_can_be_stored_or_is_refused_as_data() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let mut late = job("p");
        late.start = Start::After(queue_core::MAX_START_DELAY);
        desk.add(late).await;
        for at in [i64::MAX, i64::MIN] {
            let mut row = desk.rows(&[job("p")]).await;
            row[0].job.start = Start::At(at);
            let mut conn = desk.store.enqueue().await.expect("connects");
            let stored = queue_store::enqueue(&mut conn, &row).await;
            assert!(
                stored.as_ref().is_ok_and(|answers| answers.len() == 1) || stored.is_err_and(|error| error.is_data())
            );
        }
    })
    .await;
}

#[tokio::test]
async fn follow_up_names_its_parent_and_goes_with_the_transaction() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let parent = desk.add(job("parent")).await;
        let mut rows = desk.rows(&[job("child")]).await;
        rows[0].parent = Some(parent);
        let mut conn = desk.store.enqueue().await.expect("connects");
        let mut tx = conn.begin().await.expect("begins");
        queue_store::enqueue(&mut tx, &rows).await.expect("enqueues");
        tx.rollback().await.expect("rolls back");
        assert_eq!(db.number("select count(*) from fencepost.job").await, 1);
        let child = new_job(&queue_store::enqueue(&mut conn, &rows).await.expect("enqueues")[0]);
        assert_eq!(desk.look(child).await.parent, Some(parent.get()));
    })
    .await;
}

#[tokio::test]
async fn lanes_registered_at_the_same_time_are_one() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let mut callers = JoinSet::new();
        for _ in 0..8 {
            let store = desk.store.clone();
            callers.spawn(async move {
                let registry = queue_store::Registry::default();
                let mut conn = store.enqueue().await.expect("connects");
                registry.register(&mut conn, &job("p")).await.expect("registers")
            });
        }
        let lanes = callers.join_all().await;
        assert!(lanes.iter().all(|lane| *lane == lanes[0]));
    })
    .await;
}

#[tokio::test]
async fn queues_and_kinds_are_bounded_and_the_refusal_names_which() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add(job("p")).await;
        db.run("insert into fencepost.queue (name) select 'q' || n from generate_series(1, 10000) n").await;
        let mut conn = desk.store.enqueue().await.expect("connects");
        let full = desk.registry.register(&mut conn, &job_of("one-more", "send", "p")).await.expect_err("full");
        assert!(full.to_string().starts_with("queue: "), "{full}");
        db.run("insert into fencepost.kind (name) select 'k' || n from generate_series(1, 10000) n").await;
        let full = desk.registry.register(&mut conn, &job_of("mail", "one-more", "p")).await.expect_err("full");
        assert!(full.to_string().starts_with("kind: "), "{full}");
        assert_eq!(desk.enqueue(&[job("still")]).await.len(), 1);
    })
    .await;
}
