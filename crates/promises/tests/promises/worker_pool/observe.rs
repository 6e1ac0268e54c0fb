//! Logs and measurements.

use std::collections::BTreeMap;
use std::time::Duration;

use client::v1::JobState;
use client::{Client, ConnectOptions, Secret};
use queue_core::{Headers, NewJob, Start};
use serde_json::Value;
use testbed::{Process, free_address, listening};

use crate::jobs::{attempts, enqueue, enqueue_all, is, job, job_in, jobs};
use crate::metrics::{sample, shows};
use crate::system::{PATIENCE, says, system};

/// Every line as the JSON that it must be.
fn parsed(process: &Process) -> Vec<Value> {
    let line = |line: &String| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    process.log().iter().map(line).collect()
}

/// A field of a line, also where it belongs to a span around it.
fn field<'a>(line: &'a Value, name: &str) -> Option<&'a Value> {
    let spans = line.get("spans").and_then(Value::as_array).into_iter().flatten();
    line.get(name).or_else(|| spans.rev().find_map(|span| span.get(name)))
}

#[tokio::test]
async fn logs_are_json_with_job_attempt_session_and_token_and_never_a_payload_or_a_secret() {
    system(async |system| {
        let (address, metrics) = (free_address(), free_address());
        let url = system.db.url().replace("postgres@", "postgres:planted-password@");
        let token = ("FENCEPOST_TOKEN", "planted-token");
        let logs = ("FENCEPOST_LOG", "debug");
        let env = [("FENCEPOST_DATABASE_URL", url.as_str()), token, logs];
        let scheduler = system.start_scheduler(address, metrics, &[("--session-ttl", "2s")], &env);
        listening(address, PATIENCE).await;
        let url = format!("http://{address}");
        let handlers = [
            ("fails", "cat >&2; exit 75"),
            ("dies", "cat > /dev/null; exit 65"),
            ("works", "cat"),
            ("hangs", "echo x >> started; sleep 50"),
        ];
        let mut args = vec!["--scheduler".to_owned(), url.clone()];
        for (kind, script) in handlers {
            args.extend(["--exec".to_owned(), format!("{kind}={}", system.script(kind, script))]);
        }
        let mut worker = system.processes.start("worker", &args, &[token, logs]);
        let reaper = system.processes.start("reaper", &["--scheduler", &url, "--period", "300ms"], &[token, logs]);
        let options = ConnectOptions::new([url]).with_token(Some(Secret::new("planted-token")));
        let client = Client::lazy(&options).expect("valid options");
        let secret = |kind: &str| {
            let headers = BTreeMap::from([("authorization".to_owned(), "planted-header".to_owned())]);
            let headers = Headers::new(headers).expect("valid");
            NewJob { headers, ..attempts(job_in("default", kind, "planted-payload"), 2) }
        };
        let fails = enqueue(&client, secret("fails")).await;
        let dies = enqueue(&client, secret("dies")).await;
        let works = enqueue(&client, secret("works").with_key("k").expect("a key")).await;
        let conflict = job_in("default", "works", "planted-other").with_key("k").expect("a key");
        client.enqueue(conflict).await.expect_err("another payload under the same key");
        is(&client, fails, JobState::Dead).await;
        is(&client, dies, JobState::Dead).await;
        is(&client, works, JobState::Succeeded).await;
        enqueue(&client, secret("hangs")).await;
        system.wrote("started", 1).await;
        system.db.run("update fencepost.worker_session set dead = true").await;
        worker.logged("leases are lost", PATIENCE).await;
        says(&reaper, &["\"reaped\":1"]).await;

        let processes = [&scheduler, &worker, &reaper];
        for process in processes {
            for (line, text) in parsed(process).iter().zip(process.log()) {
                assert!(!text.contains("planted"), "{text}");
                assert!(line["timestamp"].is_string() && line["level"].is_string(), "{text}");
            }
        }
        // A failed attempt is logged once, by who ran it, with everything that finds it again.
        let lines = parsed(&worker);
        let id = fails.to_string();
        let of_job = |line: &&Value| field(line, "job.id").is_some_and(|job| job.to_string().trim_matches('"') == id);
        let failed: Vec<&Value> =
            lines.iter().filter(of_job).filter(|line| field(line, "error.code").is_some()).collect();
        assert_eq!(failed.len(), 2, "one line for each failed attempt of job {id}");
        for (at, line) in failed.iter().enumerate() {
            assert_eq!(field(line, "attempt").and_then(Value::as_u64), Some(at as u64 + 1), "{line}");
            for name in ["lease.token", "session.id", "job.kind", "job.queue"] {
                assert!(field(line, name).is_some(), "no {name} in {line}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn every_measurement_is_shown_to_prometheus_and_equals_sql_at_rest() {
    system(async |system| {
        let scheduler = system.hasty_scheduler().await;
        let client = scheduler.client();
        let (worker_metrics, reaper_metrics) = (free_address(), free_address());
        let flags = ["--metrics-listen", &reaper_metrics.to_string()];
        let _reaper = system.reaper(&[&scheduler], &flags);
        let scripts = [("works", "true"), ("fails", "exit 75"), ("hangs", "echo x >> started; sleep 50")];
        let mut crashes = system.exec_worker(&[&scheduler], &scripts[2..], &[]);
        enqueue(&client, attempts(job("hangs"), 1)).await;
        system.wrote("started", 1).await;
        system.held_for_sure().await;
        crashes.kill();
        system.dead(1).await;
        let flags = ["--metrics-listen", &worker_metrics.to_string()];
        let _worker = system.exec_worker(&[&scheduler], &scripts, &flags);
        enqueue_all(&client, jobs("works", 30)).await;
        enqueue_all(&client, jobs("nobody", 4)).await;
        enqueue_all(&client, vec![attempts(job("fails"), 3); 2]).await;
        enqueue(&client, NewJob { start: Start::After(Duration::from_hours(1)), ..job("works") }).await;
        enqueue(&client, job("hangs")).await;
        system.wrote("started", 2).await;
        system.succeeded(30).await;
        system.dead(3).await;

        let db = system.db;
        for (state, count) in [
            ("ready", db.number("select count(*) from fencepost.ready").await),
            ("leased", db.number("select count(*) from fencepost.lease").await),
            ("dead", db.number("select count(*) from fencepost.dead").await),
            ("scheduled", db.number("select count(*) from fencepost.scheduled").await),
        ] {
            assert!(count > 0);
            let labels = [r#"queue="default""#, &format!(r#"state="{state}""#)];
            shows(scheduler.metrics, "fencepost_queue_jobs", &labels, exact(count)).await;
        }
        for (end, count) in [
            ("succeeded", "select count(*) from fencepost.attempt_history where ended = 'succeeded'"),
            ("failed", "select count(*) from fencepost.attempt_history where ended = 'failed'"),
            ("lost", "select count(*) from fencepost.attempt_history where ended = 'lost'"),
        ] {
            let count = db.number(count).await;
            let label = format!(r#"end="{end}""#);
            shows(scheduler.metrics, "fencepost_attempts_ended_total", &[&label], exact(count)).await;
        }
        let jobs = "select count(*) from fencepost.job";
        shows(scheduler.metrics, "fencepost_jobs_enqueued_total", &[], exact(db.number(jobs).await)).await;
        let granted =
            "select (select count(*) from fencepost.attempt_history) + (select count(*) from fencepost.lease)";
        shows(scheduler.metrics, "fencepost_jobs_granted_total", &[], exact(db.number(granted).await)).await;
        shows(scheduler.metrics, "fencepost_jobs_died_total", &[], 3.0).await;
        let age = sample(scheduler.metrics, "fencepost_queue_oldest_ready_age_seconds", &[]).await;
        assert!(age.is_some_and(|age| age > 0.0));
        // Expired leases, lease losses, how late; processing durations and what runs.
        shows(reaper_metrics, "fencepost_reaper_leases_reaped_total", &[], 1.0).await;
        shows(reaper_metrics, "fencepost_reaper_sessions_expired_total", &[], 1.0).await;
        assert!(sample(reaper_metrics, "fencepost_reaper_lag_seconds_count", &[]).await.is_some());
        shows(worker_metrics, "fencepost_worker_handler_duration_seconds_count", &[r#"job_kind="works""#], 30.0).await;
        shows(worker_metrics, "fencepost_worker_handler_duration_seconds_count", &[r#"job_kind="fails""#], 6.0).await;
        shows(worker_metrics, "fencepost_worker_running", &[], 1.0).await;
        db.run("update fencepost.worker_session set dead = true").await;
        shows(worker_metrics, "fencepost_worker_leases_lost_total", &[], 1.0).await;
    })
    .await;
}

/// A count as Prometheus shows it.
fn exact(count: i64) -> f64 {
    f64::from(i32::try_from(count).expect("a small count"))
}
