//! Leases: one owner, a deadline, renewals, and what a lost one is worth.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::v1::work_request::Message as Request;
use client::v1::{AttemptEnd, Heartbeat, JobState, SettleVerdict};
use queue_core::{NewJob, RetryOverrides};
use testbed::eventually;
use tokio::sync::Semaphore;
use tonic::Code;
use worker::{Context, HandlerError, Success};

use crate::jobs::{at_once, ends, enqueue, is, job, look};
use crate::locks::{NO_TRANSITIONS, holding};
use crate::stream::{Stream, every_outcome, hello, lease};
use crate::system::{PATIENCE, Running, system, worker_of};

const MS_TO_EXPIRY: &str =
    "select (extract(epoch from max(expires_at) - now()) * 1000)::bigint from fencepost.worker_session where not dead";

#[tokio::test]
async fn a_lease_has_one_owner_and_a_deadline_and_is_renewed_every_third_of_it() {
    system(async |system| {
        let scheduler = system.scheduler_with(&[("--session-ttl", "3s")]).await;
        let script = "echo x >> started; while [ ! -e go ]; do sleep 0.05; done";
        let _worker = system.exec_worker(&[&scheduler], &[("a", script)], &[]);
        enqueue(&scheduler.client(), job("a")).await;
        system.wrote("started", 1).await;
        let owners = "select count(*) from fencepost.lease l join fencepost.worker_session s using (session_no)
            join fencepost.worker w using (session_no) where not s.dead and s.expires_at > now() and l.token > 0";
        assert_eq!(system.db.number(owners).await, 1);
        let deadline = "select (extract(epoch from max(expires_at)) * 1000)::bigint from fencepost.worker_session";
        let mut deadlines = vec![system.db.number(deadline).await];
        eventually(PATIENCE, "four renewals", async || {
            let now = system.db.number(deadline).await;
            if deadlines.last() != Some(&now) {
                deadlines.push(now);
            }
            deadlines.len() == 5
        })
        .await;
        // The first one may have been cut short by the start of the test.
        let steps: Vec<i64> = deadlines.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = steps.iter().sum::<i64>() / 4;
        assert!((700..=1_400).contains(&mean), "a third of 3 s, not {steps:?}");
        std::fs::write(system.path("go"), "").expect("lets it end");
        system.succeeded(1).await;
    })
    .await;
}

#[tokio::test]
async fn a_lease_is_15_s_renewed_every_5_s_by_default() {
    system(async |system| {
        let scheduler = system.scheduler_with(&[]).await;
        let stream = Stream::open(&scheduler, hello("a")).await.expect("opens");
        let seconds = |duration: Option<_>| duration.and_then(|duration| Duration::try_from(duration).ok());
        let (ttl, heartbeat) = (stream.welcome.lease_ttl, stream.welcome.heartbeat_interval);
        assert_eq!(ttl.map(|ttl| (ttl.seconds, ttl.nanos)), Some((15, 0)));
        assert_eq!(seconds(heartbeat), Some(Duration::from_secs(5)));
    })
    .await;
}

#[tokio::test]
async fn every_completion_failure_release_and_renewal_of_a_lost_lease_changes_nothing() {
    system(async |system| {
        let scheduler = system.hasty_scheduler().await;
        let client = scheduler.client();
        let _reaper = system.reaper(&[&scheduler], &[]);
        let id = enqueue(&client, NewJob { retry: at_once(), ..job("a") }).await;
        let mut loser = Stream::open(&scheduler, hello("a")).await.expect("opens");
        loser.credit(1).await;
        let lost = loser.grant().await;
        system.db.run("update fencepost.worker_session set dead = true").await;
        let mut holder = Stream::open(&scheduler, hello("a")).await.expect("opens");
        holder.credit(1).await;
        let held = holder.grant().await;
        assert_eq!((held.job_id, held.attempt), (id.get(), 2));
        let before = look(&client, id).await;
        for outcome in every_outcome() {
            // Its own token, and that of the holder: only who holds the lease may use it.
            for token in [lease(&lost), lease(&held)] {
                assert_eq!(loser.settle(token, outcome.clone()).await.verdict(), SettleVerdict::Fenced);
            }
            assert_eq!(holder.settle(lease(&lost), outcome).await.verdict(), SettleVerdict::Fenced);
        }
        assert_eq!(holder.beat(1, &[lease(&lost), lease(&held)]).await.expect("renewed"), [lease(&lost)]);
        loser.beat(1, &[lease(&lost)]).await.expect_err("a dead session is not renewed");
        assert_eq!(look(&client, id).await, before, "nothing has changed");
        let [success, ..] = every_outcome();
        assert_eq!(holder.settle(lease(&held), success).await.verdict(), SettleVerdict::Applied);
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_was_stopped_past_its_lease_is_refused_and_takes_new_work_afterwards() {
    system(async |system| {
        let scheduler = system.hasty_scheduler().await;
        let client = scheduler.client();
        let _reaper = system.reaper(&[&scheduler], &[]);
        // The first attempt ends when told to, and its process group notes what happens to it.
        let script = "echo $FENCEPOST_ATTEMPT >> started
            [ $FENCEPOST_ATTEMPT = 1 ] || { echo second; exit 0; }
            trap 'echo stopped >> stopped; exit 75' TERM
            while [ ! -e go ]; do sleep 0.05; done; echo first";
        let flags = ["--effect", "a", "--name", "sleeper"];
        let mut sleeper = system.exec_worker(&[&scheduler], &[("a", script)], &flags);
        let id = enqueue(&client, NewJob { retry: at_once(), ..job("a") }).await;
        system.wrote("started", 1).await;
        sleeper.freeze();
        let other = system.exec_worker(&[&scheduler], &[("a", script)], &flags);
        let done = is(&client, id, JobState::Succeeded).await;
        assert_eq!(ends(&done), [AttemptEnd::Lost, AttemptEnd::Succeeded]);
        drop(other);
        sleeper.thaw();
        system.wrote("stopped", 1).await;
        sleeper.logged("the session has expired", PATIENCE).await;
        assert_eq!(look(&client, id).await, done, "what it knew changed nothing");
        // Attempt 1 of the next job would wait for the file.
        std::fs::write(system.path("go"), "").expect("lets it end");
        let next = enqueue(&client, job("a")).await;
        let next = is(&client, next, JobState::Succeeded).await;
        assert_eq!((next.attempts[0].worker.as_str(), next.attempts_used), ("sleeper", 0));
    })
    .await;
}

#[tokio::test]
async fn a_late_result_of_a_handler_that_ignores_its_lost_lease_is_refused() {
    system(async |system| {
        let scheduler = system.hasty_scheduler().await;
        let client = scheduler.client();
        let _reaper = system.reaper(&[&scheduler], &[]);
        let (started, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (begun, goes) = (started.clone(), go.clone());
        let stubborn = move |_: Context| {
            let (begun, goes) = (begun.clone(), goes.clone());
            async move {
                begun.add_permits(1);
                goes.acquire().await?.forget();
                Ok(Success { effect: Some("late".into()), ..Success::default() })
            }
        };
        let slow = worker_of(&[&scheduler]).concurrency(1).cancel_grace(PATIENCE).handler("a", stubborn);
        let _slow = Running::start(slow);
        let id = enqueue(&client, job("a")).await;
        started.acquire().await.expect("open").forget();
        system.db.run("update fencepost.worker_session set dead = true").await;
        system.number_is("select count(*) from fencepost.attempt_log where ended = 'lost'", 1).await;
        let effect = |_: Context| async { Ok(Success { effect: Some("right".into()), ..Success::default() }) };
        let _other = Running::start(worker_of(&[&scheduler]).handler("a", effect));
        let done = is(&client, id, JobState::Succeeded).await;
        go.add_permits(9);
        let next = enqueue(&client, job("a")).await;
        is(&client, next, JobState::Succeeded).await;
        assert_eq!(look(&client, id).await, done);
        assert_eq!(done.effect.as_deref(), Some(&b"right"[..]));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cpu_bound_handler_that_blocks_every_runtime_thread_keeps_its_lease() {
    system(async |system| {
        let scheduler = system.hasty_scheduler().await;
        let _reaper = system.reaper(&[&scheduler], &[]);
        let client = scheduler.client();
        let (id, other) = (enqueue(&client, job("a")).await, enqueue(&client, job("a")).await);
        let runs = Arc::new(Mutex::new(0));
        let count = runs.clone();
        // A runtime of its own with one thread, so that the test's own goes on.
        let url = scheduler.url();
        let blocked = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let stop = worker::Stop::default();
                let done = stop.clone();
                let spin = move |_: Context| {
                    let (count, done) = (count.clone(), done.clone());
                    async move {
                        let end = tokio::time::Instant::now() + Duration::from_millis(4_500);
                        while tokio::time::Instant::now() < end {
                            std::hint::spin_loop();
                        }
                        *count.lock().expect("no panic") += 1;
                        if *count.lock().expect("no panic") == 2 {
                            done.soft.cancel();
                        }
                        Ok::<_, HandlerError>(Success::default())
                    }
                };
                let options = client::ConnectOptions::new([url]);
                let worker = worker::Worker::builder().connect(options).queues(["default"]).concurrency(2);
                worker.handler("a", spin).build().expect("valid").run(stop).await
            })
        });
        for id in [id, other] {
            let done = is(&client, id, JobState::Succeeded).await;
            assert_eq!(ends(&done), [AttemptEnd::Succeeded], "twice its lease without losing it");
        }
        tokio::task::spawn_blocking(move || blocked.join().expect("no panic").expect("ends well"))
            .await
            .expect("joins");
        assert_eq!(*runs.lock().expect("no panic"), 2);
    })
    .await;
}

#[tokio::test]
async fn heartbeats_and_the_reaper_have_connections_that_stuck_work_cannot_take() {
    system(async |system| {
        let scheduler = system.hasty_scheduler().await;
        let client = scheduler.client();
        let reaper = system.reaper(&[&scheduler], &[]);
        let script = "echo x >> started; while [ ! -e go ]; do sleep 0.05; done";
        let _worker = system.exec_worker(&[&scheduler], &[("a", script)], &[]);
        let id = enqueue(&client, job("a")).await;
        system.wrote("started", 1).await;
        system.number_is("select count(*) from fencepost.maintenance where passed_at > '-infinity'", 1).await;
        holding(system, NO_TRANSITIONS, async || {
            std::fs::write(system.path("go"), "").expect("lets it end");
            // Every connection for enqueues waits for the lock, and those for settlements: longer than a lease lives.
            let stuck: Vec<_> = (0..8)
                .map(|_| {
                    let client = client.clone();
                    tokio::spawn(async move { client.enqueue(job("b").with_key("stuck").expect("a key")).await })
                })
                .collect();
            let beats = "select (extract(epoch from expires_at) * 1000)::bigint from fencepost.worker_session";
            let passed = "select (extract(epoch from now() - passed_at) * 1000)::bigint from fencepost.maintenance";
            let first = system.db.number(beats).await;
            eventually(PATIENCE, "renewals go on for twice a lease time", async || {
                assert!(system.db.number(MS_TO_EXPIRY).await > 0, "the lease lives all the time");
                assert!(system.db.number(passed).await < 3_000, "the reaper passes all the time");
                system.db.number(beats).await > first + 4_000
            })
            .await;
            stuck.iter().for_each(tokio::task::JoinHandle::abort);
        })
        .await;
        assert_eq!(ends(&is(&client, id, JobState::Succeeded).await), [AttemptEnd::Succeeded]);
        drop(reaper);
    })
    .await;
}

#[tokio::test]
async fn a_grant_that_is_not_acknowledged_goes_back_and_costs_no_attempt() {
    system(async |system| {
        let scheduler = system.hasty_scheduler().await;
        let client = scheduler.client();
        let retry = RetryOverrides { max_attempts: Some(1), ..RetryOverrides::default() };
        let id = enqueue(&client, NewJob { retry, ..job("a") }).await;
        let hello = hello("a");
        let mut deaf = Stream::open(&scheduler, hello.clone()).await.expect("opens");
        deaf.credit(1).await;
        let leased = is(&client, id, JobState::Leased).await;
        assert_eq!(leased.attempts_used, 0);
        // It is alive, and what it says when it is asked again shows that the grant never came.
        deaf.say(Request::Heartbeat(Heartbeat { sequence: 1, leases: Vec::new() })).await;
        assert_eq!(deaf.end().await.code(), Code::DeadlineExceeded);
        let _deaf = Stream::open(&scheduler, hello).await.expect("the session lives");
        system.number_is("select count(*) from fencepost.attempt_log where ended = 'undelivered'", 1).await;
        let _worker = system.exec_worker(&[&scheduler], &[("a", "true")], &[]);
        let done = is(&client, id, JobState::Succeeded).await;
        assert_eq!(ends(&done), [AttemptEnd::Undelivered, AttemptEnd::Succeeded]);
        assert_eq!((done.attempts_used, done.lease_losses), (0, 0));
    })
    .await;
}
