//! What producers may send: everything else is refused with the name of the field.

use std::collections::HashMap;
use std::time::Duration;

use queue_core::{DEFAULT_MAX_PAYLOAD_BYTES, MAX_BATCH, MAX_HEADER_BYTES};
use queue_proto::v1::enqueue_result::Result as Answer;
use queue_proto::v1::new_job::Start;
use queue_proto::v1::{self, JobState};
use queue_proto::{millis, to_timestamp};
use tonic::Code;

use crate::setup::{Scheduler, job, keyed, with_flags, with_scheduler};

const DAY: Duration = Duration::from_hours(24);

fn good() -> v1::NewJob {
    job("q", "k")
}

fn headers(entries: impl IntoIterator<Item = (String, String)>) -> v1::NewJob {
    v1::NewJob { headers: HashMap::from_iter(entries), ..good() }
}

fn header(name: &str, value: &str) -> v1::NewJob {
    headers([(name.to_owned(), value.to_owned())])
}

fn retry(policy: v1::RetryPolicy) -> v1::NewJob {
    v1::NewJob { retry: Some(policy), ..good() }
}

fn policy() -> v1::RetryPolicy {
    v1::RetryPolicy::default()
}

fn delay(seconds: i64, nanos: i32) -> v1::NewJob {
    let mut delay = millis(Duration::ZERO);
    (delay.seconds, delay.nanos) = (seconds, nanos);
    v1::NewJob { start: Some(Start::Delay(delay)), ..good() }
}

fn run_at(seconds: i64, nanos: i32) -> v1::NewJob {
    let mut time = to_timestamp(0);
    (time.seconds, time.nanos) = (seconds, nanos);
    v1::NewJob { start: Some(Start::RunAt(time)), ..good() }
}

fn malformed() -> Vec<(&'static str, v1::NewJob)> {
    let long = "x".repeat(129);
    let mut cases = Vec::new();
    for name in ["", "a b", "ü", "a\0b", "a\n", "a'--", &long] {
        cases.push(("queue", job(name, "k")));
        cases.push(("kind", job("q", name)));
    }
    for key in [String::new(), "a\0b".to_owned(), "x".repeat(257), "ü".repeat(257)] {
        cases.push(("idempotency_key", keyed("q", "k", &key)));
    }
    for priority in [-1, 10, i32::MIN, i32::MAX] {
        cases.push(("priority", v1::NewJob { priority: Some(priority), ..good() }));
    }
    cases.extend([
        ("headers", headers((0..65).map(|n| (format!("h{n}"), String::new())))),
        ("headers", header("big", &"x".repeat(MAX_HEADER_BYTES - 2))),
        ("headers", header("", "v")),
        ("headers", header(&long, "v")),
        ("headers", header("a b", "v")),
        ("headers", header("ü", "v")),
        ("headers", header("a", "v\0")),
        ("delay", delay(-1, 0)),
        ("delay", delay(0, -1)),
        ("delay", delay(1, 1_000_000_000)),
        ("delay", delay(1, 2_000_000_000)),
        ("delay", delay(i64::MIN, i32::MIN)),
        ("delay", delay(i64::MAX, i32::MAX)),
        ("delay", delay(3_661 * 86_400, 0)),
        ("run_at", run_at(-62_135_596_801, 0)),
        ("run_at", run_at(7_258_118_400, 0)),
        ("run_at", run_at(0, -1)),
        ("run_at", run_at(0, 1_000_000_000)),
        ("run_at", run_at(i64::MIN, 0)),
        ("traceparent", v1::NewJob { traceparent: Some("00-a-b-01".to_owned()), ..good() }),
        ("traceparent", v1::NewJob { traceparent: Some("a b\0".to_owned()), ..good() }),
    ]);
    let mut negative = millis(Duration::ZERO);
    negative.seconds = -1;
    for timeout in [Duration::ZERO, Duration::from_micros(999), 30 * DAY + Duration::from_millis(1)] {
        cases.push(("timeout", v1::NewJob { timeout: Some(millis(timeout)), ..good() }));
    }
    cases.push(("timeout", v1::NewJob { timeout: Some(negative), ..good() }));
    let above = Some(millis(30 * DAY + Duration::from_millis(1)));
    cases.extend([
        ("retry.backoff_base", retry(v1::RetryPolicy { backoff_base: Some(negative), ..policy() })),
        ("retry.backoff_base", retry(v1::RetryPolicy { backoff_base: above, ..policy() })),
        ("retry.backoff_cap", retry(v1::RetryPolicy { backoff_cap: Some(negative), ..policy() })),
        ("retry.backoff_cap", retry(v1::RetryPolicy { backoff_cap: above, ..policy() })),
    ]);
    for count in [0, 10_001, u32::MAX] {
        cases.push(("retry.max_attempts", retry(v1::RetryPolicy { max_attempts: Some(count), ..policy() })));
        cases.push(("retry.max_lease_losses", retry(v1::RetryPolicy { max_lease_losses: Some(count), ..policy() })));
    }
    for factor in [0.0, 0.99, 100.01, -2.0, f64::NAN, f64::INFINITY] {
        cases.push(("retry.backoff_factor", retry(v1::RetryPolicy { backoff_factor: Some(factor), ..policy() })));
    }
    for jitter in [-0.01, 1.01, f64::NAN, f64::NEG_INFINITY] {
        cases.push(("retry.jitter", retry(v1::RetryPolicy { jitter: Some(jitter), ..policy() })));
    }
    cases
}

#[tokio::test]
async fn every_malformed_field_is_refused_by_name_and_stores_nothing() {
    with_scheduler(async |db, scheduler| {
        for (field, job) in malformed() {
            let refused = scheduler.try_enqueue(job.clone()).await.expect_err(field);
            assert_eq!(refused.code(), Code::InvalidArgument, "{field}: {refused}");
            assert!(refused.message().starts_with(&format!("job.{field}: ")), "{field}: {job:?}: {refused}");
        }
        let nothing = scheduler.queue().enqueue(v1::EnqueueRequest { job: None }).await.expect_err("no job");
        assert_eq!((nothing.code(), nothing.message()), (Code::InvalidArgument, "job: is required"));
        assert_eq!(db.number("select count(*) from fencepost.job").await, 0);
        assert_eq!(db.number("select count(*) from fencepost.queue").await, 0, "a refused job makes no queue");
    })
    .await;
}

#[tokio::test]
async fn bad_jobs_of_a_batch_do_not_refuse_their_neighbours_and_answers_keep_the_order() {
    with_scheduler(async |db, scheduler| {
        let mut jobs = Vec::new();
        let mut fields = Vec::new();
        for (at, (field, bad)) in malformed().into_iter().enumerate() {
            jobs.push(v1::NewJob { payload: at.to_string().into(), ..job("q", "k") });
            jobs.push(bad);
            fields.push(field);
        }
        let answers = scheduler.batch(jobs.clone()).await;
        assert_eq!(answers.len(), jobs.len());
        for (at, answer) in answers.iter().enumerate() {
            match answer {
                Answer::Enqueued(answer) => {
                    assert_eq!(at % 2, 0, "only the good ones");
                    if at % 20 == 0 {
                        assert_eq!(scheduler.job(answer.job_id).await.payload, jobs[at].payload, "in order");
                    }
                }
                Answer::Error(error) => {
                    assert_eq!(error.code, i32::from(Code::InvalidArgument));
                    let field = format!("jobs[{at}].{}: ", fields[at / 2]);
                    assert!(error.message.starts_with(&field), "{field}: {}", error.message);
                }
            }
        }
        let stored = i64::try_from(fields.len()).expect("few");
        assert_eq!(db.number("select count(*) from fencepost.ready").await, stored);
    })
    .await;
}

#[tokio::test]
async fn batches_hold_1_to_1000_jobs_and_16_mib() {
    let patient = ["--session-ttl", "15s", "--db-statement-timeout", "10s", "--max-payload-bytes", "9000000"];
    with_flags(&patient, async |db, scheduler| {
        let batch = async |jobs| scheduler.queue().enqueue_batch(v1::EnqueueBatchRequest { jobs }).await;
        for jobs in [Vec::new(), vec![good(); MAX_BATCH + 1]] {
            let refused = batch(jobs).await.expect_err("out of bounds");
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().starts_with("jobs: must have 1 to 1000 entries"), "{refused}");
        }
        let large = v1::NewJob { payload: vec![7; (16 << 20) / 2].into(), ..good() };
        let mut jobs = vec![large.clone(), large, good()];
        let refused = batch(jobs.clone()).await.expect_err("too large");
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().starts_with("jobs: has more than 16777216 bytes"), "{refused}");
        assert_eq!(db.number("select count(*) from fencepost.job").await, 0);
        jobs.pop();
        scheduler.enqueue_all(jobs).await;
        assert_eq!(scheduler.enqueue_all(vec![good(); MAX_BATCH]).await.len(), MAX_BATCH);
    })
    .await;
}

#[tokio::test]
async fn payloads_are_taken_up_to_the_bound_and_not_a_byte_more() {
    with_scheduler(async |_, scheduler| {
        let sized = |bytes| v1::NewJob { payload: vec![0xff; bytes].into(), ..good() };
        for bytes in [0, 1, DEFAULT_MAX_PAYLOAD_BYTES - 1, DEFAULT_MAX_PAYLOAD_BYTES] {
            let id = scheduler.enqueue(sized(bytes)).await;
            assert_eq!(scheduler.job(id).await.payload, sized(bytes).payload);
        }
        let refused = scheduler.try_enqueue(sized(DEFAULT_MAX_PAYLOAD_BYTES + 1)).await.expect_err("too large");
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().starts_with("job.payload: has 1048577 bytes"), "{refused}");
        // Far above every bound the message itself is refused, and the scheduler lives.
        assert!(scheduler.try_enqueue(sized(40 << 20)).await.is_err());
        scheduler.enqueue(sized(1)).await;
    })
    .await;
}

#[tokio::test]
async fn values_at_their_bounds_are_taken_and_an_explicit_zero_is_a_value() {
    with_scheduler(async |_, scheduler| {
        let longest = "aZ0_.:/-".repeat(16);
        let id = scheduler
            .enqueue(v1::NewJob {
                queue: longest.clone(),
                kind: longest.clone(),
                idempotency_key: Some("ü".repeat(256)),
                priority: Some(0),
                headers: HashMap::from([("h".to_owned(), "x".repeat(MAX_HEADER_BYTES - 1))]),
                timeout: Some(millis(Duration::from_millis(1))),
                retry: Some(v1::RetryPolicy {
                    max_attempts: Some(1),
                    max_lease_losses: Some(10_000),
                    backoff_base: Some(millis(Duration::ZERO)),
                    backoff_factor: Some(1.0),
                    backoff_cap: Some(millis(30 * DAY)),
                    jitter: Some(0.0),
                }),
                ..good()
            })
            .await;
        let stored = scheduler.job(id).await;
        assert_eq!((&stored.queue, &stored.kind, stored.priority), (&longest, &longest, 0));
        assert_eq!(stored.headers["h"].len(), MAX_HEADER_BYTES - 1);
        let retry = stored.retry.expect("a policy");
        assert_eq!((retry.max_attempts, retry.jitter, retry.backoff_factor), (Some(1), Some(0.0), Some(1.0)));
        assert_eq!(retry.backoff_base, Some(millis(Duration::ZERO)), "zero and not the default");

        let defaults = scheduler.job(scheduler.enqueue(good()).await).await;
        assert_eq!(defaults.priority, 4);
        assert_eq!(defaults.timeout, Some(millis(Duration::from_secs(20))));
        let retry = defaults.retry.expect("a policy");
        assert_eq!((retry.max_attempts, retry.max_lease_losses, retry.jitter), (Some(5), Some(3), Some(1.0)));

        let now = scheduler.enqueue(delay(0, 0)).await;
        assert_eq!(scheduler.state(now).await, JobState::Ready, "a delay of zero is now");
        let past = scheduler.enqueue(run_at(-62_135_596_800, 0)).await;
        assert_eq!(scheduler.state(past).await, JobState::Ready, "a past time is now");
        let last = scheduler.job(scheduler.enqueue(run_at(7_258_118_399, 999_999_999)).await).await;
        assert_eq!((last.state(), last.due_at.map(|due| due.seconds)), (JobState::Scheduled, Some(7_258_118_399)));
        let longest_delay = scheduler.enqueue(delay(3_660 * 86_400, 0)).await;
        assert_eq!(scheduler.state(longest_delay).await, JobState::Scheduled);
    })
    .await;
}

#[tokio::test]
async fn unicode_and_control_characters_come_back_as_they_were() {
    with_scheduler(async |_, scheduler| {
        for text in
            ["日本語 🦀 ü", "\u{1}\u{7f}\u{80}\u{feff}\u{202e}", "\\u0000 \\x00 ' \" {} \t\r\n", "\u{10ffff}\u{fffd}"]
        {
            let id = scheduler
                .enqueue(v1::NewJob {
                    payload: [text.as_bytes(), b"\0\xff"].concat().into(),
                    headers: HashMap::from([("note".to_owned(), text.to_owned())]),
                    ..keyed("q", "k", text)
                })
                .await;
            let stored = scheduler.job(id).await;
            assert_eq!(stored.idempotency_key.as_deref(), Some(text));
            assert_eq!(stored.headers["note"], text);
            assert_eq!(stored.payload[..], [text.as_bytes(), b"\0\xff"].concat()[..]);
        }
    })
    .await;
}

#[tokio::test]
async fn look_ups_with_malformed_arguments_are_refused_by_name() {
    with_scheduler(async |_, scheduler: &Scheduler| {
        for job_id in [0, -1, i64::MIN] {
            let refused = scheduler.queue().get_job(v1::GetJobRequest { job_id }).await.expect_err("no id");
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().starts_with("job_id: "), "{refused}");
        }
        for job_id in [1, i64::MAX] {
            let refused = scheduler.queue().get_job(v1::GetJobRequest { job_id }).await.expect_err("no job");
            assert_eq!(refused.code(), Code::NotFound, "{refused}");
        }
        for queues in [vec!["a b".to_owned()], vec![String::new()], vec!["q".to_owned(); 1_001]] {
            let refused = scheduler.queue().get_queue_stats(v1::GetQueueStatsRequest { queues }).await;
            let refused = refused.expect_err("no names");
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().starts_with("queues: "), "{refused}");
        }
    })
    .await;
}
