//! Single passes.

use std::time::Duration;

use client::{Client, ConnectOptions, Error, Secret};
use queue_core::WorkerName;
use reaper::{Options, Report, State, Step, run_once};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::fake::{Fake, LAG, Storage};

fn options(name: &str) -> Options {
    Options {
        holder: WorkerName::new(name).unwrap(),
        tidy_every: Duration::from_mins(1),
        audit_every: Duration::from_mins(5),
        sessions_page: 10,
        leases_page: 20,
    }
}

fn client(fake: &Fake) -> Client {
    Client::lazy(&ConnectOptions::new([fake.address.clone()])).unwrap()
}

async fn pass(fake: &Fake, state: &mut State) -> Report {
    run_once(&client(fake), state, &CancellationToken::new()).await
}

#[tokio::test]
async fn a_pass_pages_in_order_until_a_page_is_not_full_and_counts() {
    let fake = Fake::start(Storage { sessions: 20, leases: 50, ..Storage::default() }).await;
    let report = pass(&fake, &mut State::new(options("a"))).await;
    let order = ["acquire", "expire", "expire", "expire", "reap", "reap", "reap", "tidy", "audit"];
    assert_eq!(fake.calls(), order);
    assert!(report.succeeded() && report.changed() && !report.standby && !report.unfinished);
    assert_eq!((report.expired, report.lag), (20, LAG));
    assert_eq!((report.reaped, report.retried, report.dead), (50, 45, 5));
    assert_eq!(report.tidied.unwrap().partitions_created, 2);
    assert_eq!(report.violations, Some(Vec::new()));
}

#[tokio::test]
async fn tidying_and_audits_wait_for_their_interval() {
    let fake = Fake::start(Storage::default()).await;
    let mut state = State::new(options("a"));
    pass(&fake, &mut state).await;
    fake.calls();
    let report = pass(&fake, &mut state).await;
    assert_eq!(fake.calls(), ["acquire", "expire", "reap"]);
    assert!(!report.changed());
    state.tidied = state.tidied.unwrap().checked_sub(Duration::from_mins(1));
    state.audited = state.audited.unwrap().checked_sub(Duration::from_mins(5));
    pass(&fake, &mut state).await;
    assert_eq!(fake.calls(), ["acquire", "expire", "reap", "tidy", "audit"]);
}

#[tokio::test]
async fn the_second_reaper_stands_by_and_takes_over_with_a_new_token() {
    let fake = Fake::start(Storage { leases: 5, ..Storage::default() }).await;
    let (mut first, mut second) = (State::new(options("first")), State::new(options("second")));
    pass(&fake, &mut first).await;
    fake.calls();
    let report = pass(&fake, &mut second).await;
    assert!(report.standby && report.succeeded());
    assert_eq!(report.holder, "first");
    assert_eq!(fake.calls(), ["acquire"], "a reaper that stands by does nothing else");

    fake.storage().held = None; // the first one's lease ended
    assert!(!pass(&fake, &mut second).await.standby);
    assert_eq!(second.held.unwrap().token.get(), 2);
    fake.storage().leases = 5;
    assert!(pass(&fake, &mut first).await.standby);
    assert_eq!(fake.storage().leases, 5, "the old holder reaped nothing");
    assert!(first.held.is_none());
}

#[tokio::test]
async fn a_lease_lost_in_the_middle_ends_the_pass() {
    let fake =
        Fake::start(Storage { failing: [("expire", Code::FailedPrecondition)].into(), ..Storage::default() }).await;
    let mut state = State::new(options("a"));
    let report = pass(&fake, &mut state).await;
    assert_eq!(fake.calls(), ["acquire", "expire"]);
    assert!(matches!(report.failures[0].error, Error::Stale(_)));
    assert!(state.held.is_none());
}

#[tokio::test]
async fn a_long_pass_renews_its_lease_between_pages() {
    let storage = Storage { leases: 40, ttl: Some(Duration::ZERO), ..Storage::default() };
    let fake = Fake::start(storage).await;
    pass(&fake, &mut State::new(options("a"))).await;
    let order = ["acquire", "acquire", "expire", "acquire", "reap", "acquire", "reap", "acquire", "reap"];
    assert_eq!(fake.calls()[..9], order);
}

#[tokio::test]
async fn a_step_that_fails_does_not_stop_the_others() {
    for (name, step, rest) in [
        ("expire", Step::Expire, vec!["acquire", "expire", "reap", "tidy", "audit"]),
        ("tidy", Step::Tidy, vec!["acquire", "expire", "reap", "tidy", "audit"]),
    ] {
        let fake =
            Fake::start(Storage { leases: 5, failing: [(name, Code::Internal)].into(), ..Storage::default() }).await;
        let mut state = State::new(options("a"));
        let report = pass(&fake, &mut state).await;
        assert_eq!(fake.calls(), rest);
        assert_eq!(report.reaped, 5);
        assert_eq!(report.failures.len(), 1);
        assert_eq!(report.failures[0].step, step);
        assert!(report.failures[0].to_string().contains("told to fail"), "{}", report.failures[0]);
        fake.calls();
        pass(&fake, &mut state).await;
        assert_eq!(fake.calls(), ["acquire", "expire", "reap"], "tidying that failed waits for its interval");
    }
}

#[tokio::test]
async fn a_refused_caller_does_nothing_more() {
    let fake =
        Fake::start(Storage { failing: [("acquire", Code::Unauthenticated)].into(), ..Storage::default() }).await;
    let report = pass(&fake, &mut State::new(options("a"))).await;
    assert_eq!(fake.calls(), ["acquire"]);
    assert!(matches!(report.failures[0].error, Error::Denied(_)));
}

#[tokio::test]
async fn a_stop_finishes_the_page_under_way_and_begins_no_other() {
    let stop = CancellationToken::new();
    let fake = Fake::start(Storage { leases: 100, on_reap: Some(stop.clone()), ..Storage::default() }).await;
    let report = run_once(&client(&fake), &mut State::new(options("a")), &stop).await;
    assert_eq!(fake.calls(), ["acquire", "expire", "reap"]);
    assert!(report.unfinished && report.succeeded());
    assert_eq!(report.reaped, 20);
}

#[tokio::test]
async fn violations_are_reported() {
    let fake =
        Fake::start(Storage { violations: vec!["job 7 is in two states".to_owned()], ..Storage::default() }).await;
    let report = pass(&fake, &mut State::new(options("a"))).await;
    assert!(report.succeeded() && report.violated());
}

#[tokio::test]
async fn every_call_carries_the_bearer_token() {
    let fake = Fake::start(Storage::default()).await;
    let options_with_token = ConnectOptions::new([fake.address.clone()]).with_token(Some(Secret::new("planted")));
    let client = Client::lazy(&options_with_token).unwrap();
    run_once(&client, &mut State::new(options("a")), &CancellationToken::new()).await;
    let calls = fake.calls().len();
    assert_eq!(fake.storage().authorizations, vec!["Bearer planted"; calls]);
}
