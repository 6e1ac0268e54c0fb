//! The reaper's service.

use queue_proto::v1;
use serde_json::json;
use tonic::Code;

use crate::hand::Hand;
use crate::setup::{SHORT, Scheduler, job, with_flags, with_scheduler};

async fn acquire(scheduler: &Scheduler, holder: &str, token: i64) -> v1::AcquireMaintenanceResponse {
    let request = v1::AcquireMaintenanceRequest { holder: holder.to_owned(), token };
    scheduler.maintenance().acquire_maintenance(request).await.expect("answers").into_inner()
}

#[tokio::test]
async fn one_holder_acts_and_a_stale_token_changes_nothing() {
    with_scheduler(async |db, scheduler| {
        scheduler.enqueue(job("q", "k")).await;
        Hand::open(scheduler, &["q"], &["k"]).await.take_one().await;
        let first = acquire(scheduler, "first", 0).await;
        assert!(first.acquired && first.token > 0);
        let second = acquire(scheduler, "second", 0).await;
        assert_eq!((second.acquired, second.token, second.holder.as_str()), (false, 0, "first"));
        assert_eq!(acquire(scheduler, "first", first.token).await.token, first.token, "renewed");

        db.expire_maintenance().await;
        let second = acquire(scheduler, "second", 0).await;
        assert!(second.acquired && second.token > first.token);
        db.expire_session(db.number("select max(session_no) from fencepost.worker_session").await).await;
        db.end_grace().await;
        let mut client = scheduler.maintenance();
        let token = first.token;
        let refusals = [
            client.expire_sessions(v1::ExpireSessionsRequest { token, page_size: None }).await.map(|_| ()),
            client.reap_leases(v1::ReapLeasesRequest { token, page_size: None }).await.map(|_| ()),
            client.tidy_storage(v1::TidyStorageRequest { token }).await.map(|_| ()),
            client.audit(v1::AuditRequest { token }).await.map(|_| ()),
            client.release_maintenance(v1::ReleaseMaintenanceRequest { token }).await.map(|_| ()),
        ];
        for refused in refusals {
            assert_eq!(refused.expect_err("stale").code(), Code::FailedPrecondition);
        }
        assert_eq!(db.number("select count(*) from fencepost.worker_session where dead").await, 0);
        assert_eq!(db.number("select count(*) from fencepost.lease").await, 1);

        let token = second.token;
        let request = v1::ExpireSessionsRequest { token, page_size: Some(1) };
        assert_eq!(client.expire_sessions(request).await.expect("expires").into_inner().expired, 1);
        let reaped = client.reap_leases(v1::ReapLeasesRequest { token, page_size: Some(1) }).await.expect("reaps");
        assert_eq!((reaped.get_ref().reaped, reaped.get_ref().retried, reaped.get_ref().dead), (1, 1, 0));
        client.tidy_storage(v1::TidyStorageRequest { token }).await.expect("tidies");
        let audit = client.audit(v1::AuditRequest { token }).await.expect("audits").into_inner();
        assert_eq!(audit.violations, Vec::<String>::new());
        client.release_maintenance(v1::ReleaseMaintenanceRequest { token }).await.expect("releases");
    })
    .await;
}

#[tokio::test]
async fn malformed_maintenance_calls_are_refused_by_name() {
    with_scheduler(async |_, scheduler| {
        let mut client = scheduler.maintenance();
        let request = v1::AcquireMaintenanceRequest { holder: "a\0".to_owned(), token: 0 };
        let refused = client.acquire_maintenance(request).await.expect_err("no name");
        assert!(refused.code() == Code::InvalidArgument && refused.message().starts_with("holder: "), "{refused}");
        for token in [0, -1] {
            let refused = client.audit(v1::AuditRequest { token }).await.expect_err("no token");
            assert!(refused.code() == Code::InvalidArgument && refused.message().starts_with("token: "), "{refused}");
        }
        let token = acquire(scheduler, "first", 0).await.token;
        for page_size in [Some(0), Some(1_001)] {
            let refused = client.reap_leases(v1::ReapLeasesRequest { token, page_size }).await.expect_err("no page");
            assert!(refused.code() == Code::InvalidArgument, "{refused}");
            assert!(refused.message().starts_with("page_size: "), "{refused}");
            let refused = client.expire_sessions(v1::ExpireSessionsRequest { token, page_size }).await;
            assert!(refused.expect_err("no page").message().starts_with("page_size: "));
        }
    })
    .await;
}

#[tokio::test]
async fn no_session_expires_within_one_lease_time_after_no_scheduler_could_renew() {
    with_flags(&SHORT, async |db, scheduler| {
        Hand::open(scheduler, &["q"], &["k"]).await.close();
        db.expire_session(db.number("select max(session_no) from fencepost.worker_session").await).await;
        db.end_grace().await;
        // As after an outage: the next beat finds that nobody had beaten for a while.
        db.silence_schedulers(std::time::Duration::from_mins(1)).await;
        let token = acquire(scheduler, "reaper", 0).await.token;
        let request = v1::ExpireSessionsRequest { token, page_size: None };
        let answer = scheduler.maintenance().expire_sessions(request).await.expect("answers").into_inner();
        assert_eq!((answer.expired, answer.held_back), (0, true));
        let expires = async || {
            let answer = scheduler.maintenance().expire_sessions(request).await.expect("answers").into_inner();
            answer.expired == 1
        };
        let start = tokio::time::Instant::now();
        testbed::eventually(crate::setup::PATIENCE, "it expires after the grace", expires).await;
        assert!(start.elapsed() > std::time::Duration::from_millis(1_500), "not before: {:?}", start.elapsed());
    })
    .await;
}

/// Jobs that may lose one lease only, all held by a worker whose time is over.
async fn doomed(db: &testbed::TestDatabase, scheduler: &Scheduler, count: usize) -> Vec<i64> {
    let retry = Some(v1::RetryPolicy { max_lease_losses: Some(1), ..v1::RetryPolicy::default() });
    let ids = scheduler.enqueue_all(vec![v1::NewJob { retry, ..job("q", "k") }; count]).await;
    Hand::open(scheduler, &["q"], &["k"]).await.take(count).await;
    db.expire_session(db.number("select max(session_no) from fencepost.worker_session").await).await;
    db.end_grace().await;
    ids
}

#[tokio::test]
async fn a_job_that_dies_with_its_worker_is_named_and_so_is_the_worker() {
    with_scheduler(async |db, scheduler| {
        let id = doomed(db, scheduler, 1).await[0];
        assert_eq!(scheduler.reap().await, (1, 1));
        let line = scheduler.says("job is dead", 1).await.remove(0);
        assert_eq!(
            (line["job.id"].to_string().trim_matches('"'), &line["level"]),
            (id.to_string().as_str(), &json!("WARN"))
        );
        for (field, value) in [("job.queue", "q"), ("job.kind", "k"), ("reason", "lease_losses_exhausted")] {
            assert_eq!(line[field], value, "{line}");
        }
        let line = scheduler.says("session expired", 1).await.remove(0);
        assert_eq!((&line["level"], &line["worker"], &line["leases"]), (&json!("INFO"), &json!("hand"), &json!(1)));
    })
    .await;
}

#[tokio::test]
async fn many_dead_jobs_are_some_lines_and_a_count() {
    with_scheduler(async |db, scheduler| {
        doomed(db, scheduler, 500).await;
        assert_eq!(scheduler.reap().await, (1, 500));
        let more = scheduler.says("more jobs are dead", 1).await;
        let counted: u64 = more.iter().filter_map(|line| line["jobs"].as_u64()).sum();
        let named = scheduler.lines("job is dead").len();
        assert!((1..=100).contains(&named), "{named} are named");
        assert_eq!(named as u64 + counted, 500, "and none is forgotten");
    })
    .await;
}

#[tokio::test]
async fn lines_about_a_pass_tell_which_part_of_the_scheduler_writes_them() {
    with_scheduler(async |db, scheduler| {
        scheduler.enqueue(job("q", "k")).await;
        Hand::open(scheduler, &["q"], &["k"]).await.take_one().await;
        db.expire_session(db.number("select max(session_no) from fencepost.worker_session").await).await;
        db.end_grace().await;
        assert_eq!(scheduler.reap().await, (1, 1));
        let lines = scheduler.says("leases of dead sessions taken back", 1).await;
        assert_eq!(lines[0]["target"], "scheduler::reaping", "a reaper asked, nobody stood in: {}", lines[0]);
    })
    .await;
}
