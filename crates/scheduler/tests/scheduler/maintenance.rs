//! The reaper's service.

use queue_proto::v1;
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
