//! Idempotency keys: the same key is the same job.

use futures::future::join_all;
use queue_proto::v1::enqueue_result::Result as Answer;
use queue_proto::v1::{self, JobState};
use tonic::Code;

use crate::hand::{Hand, failed_for_good, succeeded};
use crate::setup::{Scheduler, job, keyed, with_scheduler};

async fn repeated(scheduler: &Scheduler, job: v1::NewJob) -> i64 {
    let answer = scheduler.try_enqueue(job).await.expect("answers");
    assert!(answer.duplicate, "the job was there");
    answer.job_id
}

#[tokio::test]
async fn the_same_key_returns_the_first_job_while_it_waits_runs_and_after_it_ended() {
    with_scheduler(async |db, scheduler| {
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let well = keyed("q", "k", "well");
        let id = scheduler.enqueue(well.clone()).await;
        assert_eq!(repeated(scheduler, well.clone()).await, id, "ready");
        let grant = hand.take_one().await;
        assert_eq!(grant.idempotency_key.as_deref(), Some("well"));
        assert_eq!(repeated(scheduler, well.clone()).await, id, "running");
        hand.settle(&grant, succeeded()).await;
        assert_eq!(repeated(scheduler, well).await, id, "finished");

        let badly = keyed("q", "k", "badly");
        let id = scheduler.enqueue(badly.clone()).await;
        let grant = hand.take_one().await;
        hand.settle(&grant, failed_for_good("no")).await;
        assert_eq!(repeated(scheduler, badly).await, id, "dead");
        assert_eq!(db.number("select count(*) from fencepost.job").await, 2);
    })
    .await;
}

#[tokio::test]
async fn callers_that_race_with_one_key_get_one_job() {
    with_scheduler(async |db, scheduler| {
        let racing = (0..40).map(|_| scheduler.try_enqueue(keyed("q", "k", "race")));
        let answers = join_all(racing).await;
        let answers: Vec<v1::EnqueueResponse> = answers.into_iter().map(|answer| answer.expect("answers")).collect();
        assert_eq!(answers.iter().filter(|answer| !answer.duplicate).count(), 1, "one is first");
        assert!(answers.iter().all(|answer| answer.job_id == answers[0].job_id));
        assert_eq!(db.number("select count(*) from fencepost.ready").await, 1);
    })
    .await;
}

#[tokio::test]
async fn many_first_jobs_of_a_queue_at_once_are_all_stored() {
    with_scheduler(async |db, scheduler| {
        let first = (0..300).map(|n| scheduler.try_enqueue(job("new", &format!("kind-{}", n % 3))));
        for answer in join_all(first).await {
            answer.expect("stored");
        }
        assert_eq!(db.number("select count(*) from fencepost.ready").await, 300);
    })
    .await;
}

#[tokio::test]
async fn callers_that_race_over_two_schedulers_with_many_keys_get_one_job_per_key() {
    with_scheduler(async |db, first| {
        let second = Scheduler::start(&db.url(), &[]).await;
        let batch = |backwards: bool| {
            let mut jobs: Vec<v1::NewJob> = (0..100).map(|n| keyed("q", "k", &format!("key-{n}"))).collect();
            if backwards {
                jobs.reverse();
            }
            jobs
        };
        let racing = (0..20).map(async |n| {
            let scheduler = if n % 2 == 0 { first } else { &second };
            scheduler.enqueue_all(batch(n % 3 == 0)).await.into_iter().collect::<std::collections::BTreeSet<_>>()
        });
        let answers = join_all(racing).await;
        assert_eq!(answers[0].len(), 100);
        assert!(answers.iter().all(|ids| *ids == answers[0]), "all callers were told the same jobs");
        assert_eq!(db.number("select count(*) from fencepost.job").await, 100);
    })
    .await;
}

#[tokio::test]
async fn the_same_key_with_other_content_is_refused_as_already_existing() {
    with_scheduler(async |db, scheduler| {
        let first = keyed("q", "k", "taken");
        let id = scheduler.enqueue(first.clone()).await;
        let others = [
            v1::NewJob { payload: "other".into(), ..first.clone() },
            v1::NewJob { kind: "other".to_owned(), ..first.clone() },
            v1::NewJob { queue: "other".to_owned(), ..first.clone() },
        ];
        for other in others.clone() {
            let refused = scheduler.try_enqueue(other).await.expect_err("refused");
            assert_eq!(refused.code(), Code::AlreadyExists);
            assert!(refused.message().contains("idempotency_key"), "{refused}");
            assert!(refused.message().contains(&id.to_string()), "it tells which job: {refused}");
        }
        // What does not change the job's content does not matter.
        assert_eq!(repeated(scheduler, v1::NewJob { priority: Some(9), ..first.clone() }).await, id);

        let answers = scheduler.batch(vec![job("q", "k"), others[0].clone(), first, job("q", "k")]).await;
        assert!(matches!(answers[0], Answer::Enqueued(ref answer) if !answer.duplicate));
        assert!(matches!(answers[1], Answer::Error(ref error) if error.code == i32::from(Code::AlreadyExists)));
        assert!(matches!(answers[2], Answer::Enqueued(ref answer) if answer.duplicate && answer.job_id == id));
        assert!(matches!(answers[3], Answer::Enqueued(ref answer) if !answer.duplicate));
        assert_eq!(db.number("select count(*) from fencepost.job").await, 3);
    })
    .await;
}

#[tokio::test]
async fn one_key_twice_in_a_batch_is_one_job() {
    with_scheduler(async |_, scheduler| {
        let twice = keyed("q", "k", "twice");
        let other = v1::NewJob { payload: "other".into(), ..twice.clone() };
        let answers = scheduler.batch(vec![twice.clone(), twice, other]).await;
        let [Answer::Enqueued(first), Answer::Enqueued(second), Answer::Error(error)] = &answers[..] else {
            panic!("two are stored and one is refused: {answers:?}");
        };
        assert_eq!(first.job_id, second.job_id);
        assert_ne!(first.duplicate, second.duplicate, "one is first");
        assert_eq!(error.code, i32::from(Code::AlreadyExists));
        assert_eq!(scheduler.state(first.job_id).await, JobState::Ready);
    })
    .await;
}
