//! How jobs come to workers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::v1::JobState;
use queue_core::{NewJob, Priority, Start};
use testbed::eventually;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tonic::Code;
use worker::{Context, Success};

use crate::jobs::{enqueue, enqueue_all, is, job, job_in, jobs, look};
use crate::metrics::sample;
use crate::stream::{Stream, hello};
use crate::system::{PATIENCE, Running, client_of, system, worker_of};

#[tokio::test]
async fn enqueuing_returns_at_once_and_work_happens_elsewhere() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        enqueue(&client, job("a")).await;
        // Nobody is there to run it, and a job that takes long takes no longer to enqueue.
        let start = Instant::now();
        let id = enqueue(&client, job("a")).await;
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        assert_eq!(look(&client, id).await.state(), JobState::Ready);
        let _worker = system.exec_worker(&[&scheduler], &[("a", "echo x >> ran")], &[]);
        is(&client, id, JobState::Succeeded).await;
    })
    .await;
}

#[tokio::test]
async fn concurrency_is_set_by_worker_concurrency_and_scales_by_adding_processes() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let script = system.script("a", "echo x >> started; while [ ! -e go ]; do sleep 0.05; done");
        let (url, exec) = (scheduler.url(), format!("a={script}"));
        let args = ["--scheduler", &url, "--exec", &exec];
        let start = || system.processes.start("worker", &args, &[("WORKER_CONCURRENCY", "3")]);
        enqueue_all(&scheduler.client(), jobs("a", 10)).await;
        let leased = "select count(*) from fencepost.lease";
        let one = start();
        system.wrote("started", 3).await;
        assert_eq!((system.db.number(leased).await, system.lines("started").len()), (3, 3));
        let two = start();
        system.wrote("started", 6).await;
        assert_eq!((system.db.number(leased).await, system.lines("started").len()), (6, 6));
        std::fs::write(system.path("go"), "").expect("lets them end");
        system.succeeded(10).await;
        drop((one, two));
    })
    .await;
}

#[tokio::test]
async fn workers_wait_without_polling_and_work_arrives_when_it_exists() {
    system(async |system| {
        let schedulers = [system.scheduler().await, system.scheduler().await];
        let (started, mut starts) = mpsc::unbounded_channel();
        let handler = move |_: Context| {
            let _ = started.send(Instant::now());
            async { Ok(Success::default()) }
        };
        let _worker = Running::start(worker_of(&[&schedulers[0]]).handler("a", handler));
        let through = schedulers[0].metrics;
        eventually(PATIENCE, "it is connected", async || {
            sample(through, "fencepost_slots_free", &[]).await == Some(8.0)
        })
        .await;
        // Enqueued through the worker's own scheduler, and through another one.
        for scheduler in [&schedulers[0], &schedulers[1]] {
            let client = client_of(&[scheduler]);
            let mut waits = Vec::new();
            for _ in 0..9 {
                let before = Instant::now();
                enqueue(&client, job("a")).await;
                let start = timeout(PATIENCE, starts.recv()).await.expect("it starts").expect("the worker lives");
                waits.push(start.duration_since(before));
            }
            waits.sort_unstable();
            // The guarantee behind the push looks every 2 s; half of all jobs would wait for a second.
            assert!(waits[4] < Duration::from_millis(500), "{waits:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn several_queues_are_listened_to_in_priority_order_high_first() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        for (queue, payload) in
            [("low", "5"), ("middle", "3"), ("high", "1"), ("low", "6"), ("middle", "4"), ("high", "2")]
        {
            enqueue(&client, job_in(queue, "a", payload)).await;
        }
        let ran = Arc::new(Mutex::new(Vec::new()));
        let order = ran.clone();
        let handler = move |job: Context| {
            order.lock().expect("no panic").push(String::from_utf8_lossy(job.payload()).into_owned());
            async { Ok(Success::default()) }
        };
        let worker = worker_of(&[&scheduler]).queues(["high", "middle", "low"]).concurrency(1);
        let _worker = Running::start(worker.handler("a", handler));
        system.succeeded(6).await;
        assert_eq!(*ran.lock().expect("no panic"), ["1", "2", "3", "4", "5", "6"]);
    })
    .await;
}

#[tokio::test]
async fn priorities_within_a_queue_go_9_first() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        for priority in [0, 4, 9, 5] {
            let priority = Priority::try_from(priority).expect("0 to 9");
            let text = priority.get().to_string();
            enqueue(&client, NewJob { priority, ..job_in("default", "a", &text) }).await;
        }
        let script = "cat >> ran; echo >> ran";
        let _worker = system.exec_worker(&[&scheduler], &[("a", script)], &["--concurrency", "1"]);
        system.succeeded(4).await;
        assert_eq!(system.lines("ran"), ["9", "5", "4", "0"]);
    })
    .await;
}

#[tokio::test]
async fn a_delayed_job_starts_near_its_due_time_and_holds_no_lease_before() {
    const DELAY: Duration = Duration::from_millis(1_500);
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let _worker = Running::start(worker_of(&[&scheduler]).handler("a", |_| async { Ok(Success::default()) }));
        let id = enqueue(&client, NewJob { start: Start::After(DELAY), ..job("a") }).await;
        let waiting = look(&client, id).await;
        assert_eq!(waiting.state(), JobState::Scheduled);
        assert!(waiting.due_at.is_some());
        is(&client, id, JobState::Succeeded).await;
        let late = system
            .db
            .number(
                "select (extract(epoch from started_at - fencepost.id_time(job_id)) * 1000)::bigint - 1500
                from fencepost.finished",
            )
            .await;
        // Started before it was due it would have held a lease then. Job ids are to the millisecond.
        assert!((-1..1_000).contains(&late), "started {late} ms after it was due");
    })
    .await;
}

#[tokio::test]
async fn a_job_of_a_kind_that_no_worker_knows_waits_and_holds_nobody_up() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let unknown = enqueue(&client, job("unknown")).await;
        let id = enqueue(&client, job("a")).await;
        let _worker =
            Running::start(worker_of(&[&scheduler]).concurrency(1).handler("a", |_| async { Ok(Success::default()) }));
        is(&client, id, JobState::Succeeded).await;
        assert_eq!(look(&client, unknown).await.state(), JobState::Ready);
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_acknowledges_nothing_kills_no_jobs_beside_one_that_does() {
    system(async |system| {
        let mut scheduler = system.hasty_scheduler().await;
        let hello = hello("a");
        let mut mute = Stream::open(&scheduler, hello.clone()).await.expect("opens");
        mute.credit(10_000).await;
        enqueue_all(&scheduler.client(), jobs("a", 200)).await;
        system.number_is("select count(*) from fencepost.lease", 1).await;
        // The second one is said after the grant was sent.
        for sequence in 1..=2 {
            mute.beat(sequence, &[]).await.expect("it lives");
        }
        let handler = |_: Context| async { Ok(Success::default()) };
        let _worker = Running::start(worker_of(&[&scheduler]).handler("a", handler));
        assert_eq!(mute.end().await.code(), Code::DeadlineExceeded);
        let _again = Stream::open(&scheduler, hello).await.expect("the session lives");
        system.number_is("select count(*) from fencepost.finished", 200).await;
        assert_eq!(system.db.number("select count(*) from fencepost.dead").await, 0);
        scheduler.process.logged("worker does not acknowledge its grants", PATIENCE).await;
    })
    .await;
}
