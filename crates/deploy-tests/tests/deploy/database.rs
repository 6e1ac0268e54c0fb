//! The queries of docs/database.md, against a database with a job in every state.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use client::v1::JobState;
use queue_core::{NewJob, RetryOverrides};
use testbed::{Process, db_test};

use crate::programs::program;
use crate::psql::psql;
use crate::stage::{Stage, job};
use crate::tools::{blocks, present, root};

/// The role that the page makes, and its password.
const READER: (&str, &str) = ("fencepost_reader", "choose-one");
/// Parts of what each query answers, in the order of the page, behind the statements that make the reader.
const ANSWERS: [&[&str]; 9] = [
    &["queue,scheduled,ready,leased,succeeded,dead,cancelled,oldest_ready_age\n", "\ndefault,1,1,1,1,1,0,00:00:"],
    &["queue,kind,priority,ready,oldest,workers\ndefault,report,4,1,00:00:", ",0\n"],
    &[",default,sync,", ",1,exit_75: no answer\n"],
    &[",default,charge,", ",failed_for_good,exit_65: card refused,2,worker-a\n"],
    &["state,succeeded\n", "idempotency_key,welcome/7\n", "worker,worker-a\n", "result_text,hello\n"],
    &[",1,failed,exit_75,card refused,worker-a,", ",2,failed,exit_65,card refused,worker-a,"],
    &["\nworker-a,default,import,", ",1,00:00:", ",f\n"],
    &["\nwelcome/7,t,", ",hello\n"],
    &["audit\n"],
];

fn page() -> Result<String> {
    std::fs::read_to_string(root().join("docs/database.md")).context("read docs/database.md")
}

/// One job in each state. The worker holds one of them for as long as it lives.
async fn filled(stage: &Stage) -> Process {
    let handlers = [
        "send_welcome=cat",
        "charge=sh -c 'echo card refused >&2; [ $FENCEPOST_ATTEMPT = 1 ] && exit 75; exit 65'",
        "sync=sh -c 'echo no answer >&2; exit 75'",
        "import=sleep 50",
    ];
    let flags = handlers.iter().flat_map(|handler| ["--exec", handler]);
    let flags: Vec<&str> = flags.chain(["--name", "worker-a", "--effect", "send_welcome"]).collect();
    let worker = stage.worker(&flags);
    stage.job_in(JobState::Succeeded, job("send_welcome", "welcome/7")).await;
    stage.job_in(JobState::Dead, after(Duration::ZERO, job("charge", "charge/7"))).await;
    stage.job_in(JobState::Leased, job("import", "import/7")).await;
    stage.job_in(JobState::Ready, job("report", "report/7")).await;
    let sync = after(Duration::from_hours(1), job("sync", "sync/7"));
    stage.job_in(JobState::Scheduled, sync).await;
    worker
}

/// A job whose failures are tried again after that time.
fn after(wait: Duration, job: NewJob) -> NewJob {
    let retry = RetryOverrides { backoff_base: Some(wait), backoff_cap: Some(wait), jitter: Some(0.0), ..job.retry };
    NewJob { retry, ..job }
}

#[tokio::test]
async fn every_query_of_the_page_answers_a_reader() -> Result<()> {
    if !present("psql", "postgresql-client")? {
        return Ok(());
    }
    program("scheduler")?;
    let page = page()?;
    let queries = blocks(&page, "sql");
    let (grants, queries) = queries.split_first().context("the page has queries")?;
    ensure!(queries.len() == ANSWERS.len(), "the page has {} queries", queries.len());
    db_test(async |db| {
        let stage = Stage::start(db).await;
        let _worker = filled(&stage).await;
        // Roles belong to the server, which tests share.
        let role = format!("{}_{}", READER.0, std::process::id());
        psql(&db.url(), &grants.replace(READER.0, &role)).expect("the reader is made");
        let reader = db.url_as(&role, READER.1);
        let answers: Vec<_> = queries.iter().map(|query| psql(&reader, query)).collect();
        let change = psql(&reader, "delete from fencepost.dead");
        psql(&db.url(), &format!("drop owned by {role}; drop role {role}")).expect("the reader is removed");

        for ((query, answer), parts) in queries.iter().zip(answers).zip(ANSWERS) {
            let answer = answer.expect("the query runs");
            assert!(parts.iter().all(|part| answer.contains(part)), "{query}\nmisses one of {parts:?}:\n{answer}");
        }
        let refusal = change.expect_err("a reader changes nothing").to_string();
        assert!(refusal.contains("permission denied"), "{refusal}");
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn every_view_is_on_the_page() -> Result<()> {
    if !present("psql", "postgresql-client")? {
        return Ok(());
    }
    let page = page()?;
    db_test(async |db| {
        let views = psql(&db.url(), "select viewname from pg_views where schemaname = 'fencepost'");
        for view in views.expect("the views are listed").lines().skip(1) {
            assert!(page.contains(&format!("| `fencepost.{view}` |")), "docs/database.md does not have {view}");
        }
    })
    .await;
    Ok(())
}
