//! Starting and stopping.

use std::time::Duration;

use queue_proto::v1::work_response::Message as Response;
use queue_proto::v1::{self, JobState, SettleVerdict};
use testbed::{Process, Processes, TestDatabase, db_test, eventually, free_address};
use tokio::time::Instant;

use crate::hand::{Hand, failed, succeeded};
use crate::proxy::{Network, Proxy};
use crate::setup::{PATIENCE, SHORT, Scheduler, job, launch, with_scheduler};

/// Starts a scheduler that must refuse to run; returns what it wrote.
async fn refused(url: Option<&str>, flags: &[&str]) -> String {
    let (_processes, mut process) = launch(url, free_address(), flags);
    let status = process.exit(PATIENCE).await;
    assert!(!status.success(), "{flags:?} is refused");
    written(&process).await
}

/// All that a process that has ended wrote; its pipes are read by threads that may lag.
async fn written(process: &Process) -> String {
    eventually(PATIENCE, "it wrote something", async || !process.log().is_empty()).await;
    process.log().join("\n")
}

#[tokio::test]
async fn an_unknown_schema_is_refused_in_one_clear_line() {
    db_test(async |db| {
        db.run("insert into fencepost.schema_migration (version, description, success, checksum, execution_time) values (9999, 'later', true, '', 0)").await;
        let log = refused(Some(&db.url()), &[]).await;
        let lines: Vec<&str> = log.lines().filter(|line| line.contains("9999")).collect();
        assert!(lines.len() == 1 && lines[0].contains("use a newer scheduler"), "{log}");
    })
    .await;
}

#[tokio::test]
async fn an_empty_database_is_refused_until_it_is_migrated() {
    let db = TestDatabase::new().await;
    db.run("drop schema fencepost cascade").await;
    let log = refused(Some(&db.url()), &[]).await;
    assert!(log.contains("run `scheduler migrate` first"), "{log}");
    let processes = Processes::new();
    let url = db.url();
    let mut many: Vec<Process> =
        (0..4).map(|_| processes.start("scheduler", &["migrate"], &[("DATABASE_URL", &url)])).collect();
    for process in &mut many {
        let status = process.exit(PATIENCE).await;
        assert!(status.success(), "{}", process.log().join("\n"));
    }
    let scheduler = Scheduler::start(&url, &[]).await;
    scheduler.enqueue(job("q", "k")).await;
    drop(scheduler);
    db.check().await;
}

#[tokio::test]
async fn a_database_that_is_away_at_the_start_is_waited_for() {
    db_test(async |db| {
        let (proxy, url) = Proxy::of_database(&db.url(), Network::Cut).await;
        let address = free_address();
        let (processes, mut process) = launch(Some(&url), address, &[]);
        process.logged("reaching the database failed", PATIENCE).await;
        assert!(!process.log().iter().any(|line| line.contains("scheduler serves")));
        proxy.become_(Network::Whole);
        process.logged("scheduler serves", PATIENCE).await;
        let scheduler = Scheduler::of(processes, process, address);
        scheduler.enqueue(job("q", "k")).await;
    })
    .await;
}

#[tokio::test]
async fn a_scheduler_that_waits_for_its_database_can_be_stopped() {
    db_test(async |db| {
        let (_proxy, url) = Proxy::of_database(&db.url(), Network::Cut).await;
        let (_processes, mut process) = launch(Some(&url), free_address(), &[]);
        process.logged("reaching the database failed", PATIENCE).await;
        process.terminate();
        assert!(process.exit(Duration::from_secs(5)).await.success());
    })
    .await;
}

#[tokio::test]
async fn contradicting_flags_are_refused_naming_both() {
    let url = "postgres://nobody:planted-secret@127.0.0.1:1/none";
    for (flags, names) in [
        (vec!["--db-statement-timeout", "2s"], vec!["--db-statement-timeout", "--session-ttl"]),
        (vec!["--db-connect-timeout", "3s"], vec!["--db-connect-timeout", "--session-ttl"]),
        (vec!["--db-lock-timeout", "1h"], vec!["--db-lock-timeout", "--session-ttl"]),
        (vec!["--db-idle-timeout", "2s"], vec!["--db-idle-timeout", "--session-ttl"]),
        (vec!["--heartbeat-interval", "1s"], vec!["--heartbeat-interval", "--session-ttl"]),
        (vec!["--grant-ack-timeout", "2s"], vec!["--grant-ack-timeout", "--session-ttl"]),
        (vec!["--db-lock-timeout", "0s"], vec!["--db-lock-timeout must not be zero"]),
        (vec!["--session-ttl", "500ms"], vec!["--session-ttl"]),
        (vec!["--keep-keys", "1d"], vec!["--keep-keys", "--keep-jobs"]),
        (vec!["--max-payload-bytes", "0"], vec!["--max-payload-bytes"]),
        (vec!["--max-payload-bytes", "16777217"], vec!["--max-payload-bytes"]),
        (vec!["--db-hot-connections", "1"], vec!["--db-hot-connections"]),
        (vec!["--tls-cert", "nowhere.pem"], vec!["--tls-cert", "--tls-key"]),
        (vec!["--listen", "0.0.0.0:0"], vec!["0.0.0.0:0", "--tls-cert", "--token-file", "--insecure-listen"]),
        (vec!["--listen", "[::]:0"], vec!["[::]:0", "--insecure-listen"]),
    ] {
        let mut short = flags.clone();
        if !flags.contains(&"--session-ttl") {
            short.extend(SHORT);
        }
        let log = refused(Some(url), &short).await;
        for name in names {
            assert!(log.contains(name), "{flags:?}: {name} in {log}");
        }
        assert!(!log.contains("planted-secret"), "{log}");
    }
    let log = refused(None, &[]).await;
    assert!(log.contains("FENCEPOST_DATABASE_URL"), "{log}");
}

#[tokio::test]
async fn everything_that_does_not_fit_is_told_at_once() {
    let flags = ["--session-ttl", "500ms", "--keep-keys", "1d", "--max-payload-bytes", "0", "--tls-cert", "x.pem"];
    let log = refused(Some("mysql://u:planted-secret@127.0.0.1/d"), &flags).await;
    let line = log.lines().find(|line| line.contains("--session-ttl is 500ms")).expect("a line");
    for problem in ["--keep-keys", "--max-payload-bytes", "--tls-cert needs --tls-key", "must begin with postgres://"] {
        assert!(line.contains(problem), "{problem} in {log}");
    }
    assert!(!log.contains("planted-secret"), "{log}");
}

#[tokio::test]
async fn the_url_of_another_kind_of_database_is_refused() {
    for url in ["mysql://u:planted-secret@127.0.0.1:1/d", "u:planted-secret@127.0.0.1:1/d", "postgres:/x"] {
        let log = refused(Some(url), &[]).await;
        assert!(log.contains("must begin with postgres:// or postgresql://"), "{log}");
        assert!(!log.contains("planted-secret") && !log.contains("reaching the database"), "{log}");
    }
}

#[tokio::test]
async fn a_database_that_is_given_twice_is_refused_naming_both() {
    let url = "postgres://u:planted-secret@127.0.0.1:1/d";
    for (variable, flags, names) in [
        (Some(url), vec!["--database-url-file", "x"], ["FENCEPOST_DATABASE_URL ", "--database-url-file"]),
        (None, vec!["--database-url", url, "--database-url-file", "x"], ["--database-url ", "--database-url-file"]),
    ] {
        let log = refused(variable, &flags).await;
        assert!(log.contains("given twice") && names.iter().all(|name| log.contains(name)), "{log}");
        assert!(!log.contains("planted-secret"), "{log}");
    }
    // An empty variable is none.
    let log = refused(Some(""), &["--database-url-file", "nowhere"]).await;
    assert!(log.contains("read --database-url-file nowhere"), "{log}");
}

#[tokio::test]
async fn a_password_on_the_command_line_is_warned_of() {
    let url = "postgres://u:planted-secret@127.0.0.1:1/d";
    let (_processes, mut process) = launch(None, free_address(), &["--database-url", url]);
    process.logged("the password in --database-url is shown", PATIENCE).await;
    process.logged("reaching the database failed", PATIENCE).await;
    assert!(!process.log().iter().any(|line| line.contains("planted-secret")));
    let (_processes, mut process) = launch(Some(url), free_address(), &[]);
    process.logged("reaching the database failed", PATIENCE).await;
    assert!(!process.log().iter().any(|line| line.contains("the password in --database-url")));
}

#[tokio::test]
async fn why_the_database_cannot_be_reached_is_told() {
    let (_processes, mut process) = launch(Some("postgres://u@127.0.0.1:1/d"), free_address(), &[]);
    process.logged("reaching the database failed", PATIENCE).await;
    let log = process.log().join("\n");
    assert!(log.contains("Connection refused") && !log.contains("pool timed out"), "{log}");
}

#[tokio::test]
async fn what_the_server_says_is_told_once() {
    db_test(async |db| {
        let log = refused(Some(&db.url_as("nobody-at-all", "x")), &[]).await;
        let line = log.lines().find(|line| line.contains("scheduler failed")).expect("it says why");
        assert_eq!(line.matches("nobody-at-all").count(), 1, "{line}");
        assert!(!line.contains(" at line "), "{line}");
    })
    .await;
}

#[tokio::test]
async fn the_database_password_is_never_written() {
    db_test(async |db| {
        let (_proxy, url) = Proxy::of_database(&db.url(), Network::Cut).await;
        let (scheme, rest) = url.split_once("://").expect("a URL");
        let place = rest.rsplit_once('@').expect("a user").1;
        let url = format!("{scheme}://planted:planted-secret@{place}");
        let (_processes, mut process) = launch(Some(&url), free_address(), &["--log-filter", "debug"]);
        process.logged("reaching the database failed", PATIENCE).await;
        process.terminate();
        process.exit(PATIENCE).await;
        assert!(!process.log().iter().any(|line| line.contains("planted-secret")));
    })
    .await;
}

#[tokio::test]
async fn the_least_privileged_role_is_enough_for_everything_a_scheduler_does() {
    db_test(async |db| {
        // Roles belong to the server, so each run has one of its own.
        db.run("do $$ begin execute format('create role fencepost_run_%s login password ''test''', (select oid from pg_database where datname = current_database())); end $$").await;
        let number = db.number("select oid::bigint from pg_database where datname = current_database()").await;
        let role = format!("fencepost_run_{number}");
        let processes = Processes::new();
        let url = db.url();
        let arguments = ["migrate", "--app-role", &role];
        let mut migrating = processes.start("scheduler", &arguments, &[("FENCEPOST_DATABASE_URL", &url)]);
        assert!(migrating.exit(PATIENCE).await.success(), "{}", migrating.log().join("\n"));
        let mut scheduler = Scheduler::start(&db.url_as(&role, "test"), &[]).await;
        scheduler.enqueue_all(vec![job("new", "new"); 4]).await;
        let mut hand = Hand::open(&scheduler, &["new"], &["new"]).await;
        let held = hand.take(4).await;
        let follow_ups = vec![job("next", "new")];
        let leading = v1::Succeeded { follow_ups, effect: Some("done".into()), ..v1::Succeeded::default() };
        let leading = v1::settlement::Outcome::Succeeded(leading);
        for (grant, outcome) in [(&held[0], succeeded()), (&held[1], leading), (&held[2], failed("no"))] {
            assert_eq!(hand.settle(grant, outcome).await.verdict(), SettleVerdict::Applied);
        }
        db.make_due().await;
        let again = hand.take_one().await;
        assert_eq!((again.job_id, again.attempt), (held[2].job_id, 2));
        db.expire_session(db.number("select max(session_no) from fencepost.worker_session").await).await;
        db.end_grace().await;
        assert_eq!(scheduler.reap().await, (1, 2));
        let request = v1::AcquireMaintenanceRequest { holder: "test".to_owned(), token: 0 };
        let token = scheduler.maintenance().acquire_maintenance(request).await.expect("acquires").into_inner().token;
        scheduler.maintenance().tidy_storage(v1::TidyStorageRequest { token }).await.expect("tidies");
        let audit = scheduler.maintenance().audit(v1::AuditRequest { token }).await.expect("audits");
        assert_eq!(audit.into_inner().violations, Vec::<String>::new());
        scheduler.process.terminate();
        assert!(scheduler.process.exit(PATIENCE).await.success());
        assert!(!scheduler.process.log().iter().any(|line| line.contains("\"ERROR\"")), "nothing was forbidden");
        db.run("do $$ begin execute format('drop owned by %1$I; drop role %1$I', 'fencepost_run_' || (select oid from pg_database where datname = current_database())); end $$").await;
    })
    .await;
}

#[tokio::test]
async fn a_stop_tells_workers_to_move_settles_what_is_on_its_way_and_ends_well() {
    db_test(async |db| {
        let mut scheduler = Scheduler::start(&db.url(), &[]).await;
        let second = Scheduler::start(&db.url(), &[]).await;
        let ids = scheduler.enqueue_all(vec![job("q", "k"); 3]).await;
        let mut hand = Hand::open(&scheduler, &["q"], &["k"]).await;
        let held = hand.take(3).await;
        hand.room(5).await;
        scheduler.process.terminate();
        let drain = hand.wait(|message| match message {
            Response::Drain(drain) => Ok(drain),
            other => Err(other),
        });
        assert!(drain.await.reconnect_after.is_some());
        assert_eq!(hand.settle(&held[0], succeeded()).await.verdict(), SettleVerdict::Applied, "still served");
        let late = second.enqueue(job("q", "k")).await;
        let mut moved = hand.again(&second, &held[1..]).await.expect("moves");
        assert_eq!(moved.welcome.lost, []);
        hand.close();
        let status = scheduler.process.exit(Duration::from_secs(8)).await;
        assert!(status.success(), "{}", scheduler.process.log().join("\n"));
        assert_eq!(moved.take_one().await.job_id, late, "nothing was claimed by the one that stops");
        for grant in &held[1..] {
            assert_eq!(moved.settle(grant, succeeded()).await.verdict(), SettleVerdict::Applied);
        }
        for id in ids {
            assert_eq!(second.job(id).await.attempts.len(), 1, "each ran once");
        }
        assert_eq!(db.number("select count(*) from fencepost.scheduler").await, 1, "it has retired");
    })
    .await;
}

#[tokio::test]
async fn workers_that_do_not_move_hold_a_stop_up_no_longer_than_its_bound() {
    db_test(async |db| {
        let mut scheduler = Scheduler::start(&db.url(), &["--drain-timeout", "1s"]).await;
        let mut hand = Hand::open(&scheduler, &["q"], &["k"]).await;
        scheduler.process.terminate();
        let start = Instant::now();
        let status = scheduler.process.exit(Duration::from_secs(6)).await;
        assert!(status.success() && start.elapsed() > Duration::from_millis(900), "{:?}", start.elapsed());
        hand.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_second_interrupt_stops_at_once() {
    db_test(async |db| {
        let mut scheduler = Scheduler::start(&db.url(), &["--drain-timeout", "10m"]).await;
        let mut hand = Hand::open(&scheduler, &["q"], &["k"]).await;
        scheduler.process.interrupt();
        hand.wait(|message| match message {
            Response::Drain(_) => Ok(()),
            other => Err(other),
        })
        .await;
        scheduler.process.interrupt();
        let status = scheduler.process.exit(Duration::from_secs(4)).await;
        assert_eq!(status.code(), Some(130));
    })
    .await;
}

#[tokio::test]
async fn a_killed_scheduler_leaves_everything_to_the_next_one() {
    with_scheduler(async |db, scheduler| {
        let mut first = Scheduler::start(&db.url(), &[]).await;
        let ids = first.enqueue_all(vec![job("q", "k"); 20]).await;
        first.process.kill();
        let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
        let grants = hand.take(20).await;
        assert_eq!(grants.iter().map(|grant| grant.job_id).collect::<Vec<_>>(), ids);
        assert_eq!(scheduler.state(ids[0]).await, JobState::Leased);
    })
    .await;
}
