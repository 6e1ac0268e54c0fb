//! The views that people look at.

use anyhow::Result;
use client::v1::JobState;
use queue_core::{NewJob, RetryOverrides};
use testbed::{TestDatabase, db_test};

use crate::programs::program;
use crate::psql::psql;
use crate::stage::{Stage, job};
use crate::tools::present;

/// Jobs in every place, several thousand in each, consistently counted.
const MANY: &str = "
    insert into fencepost.queue (name) values ('default');
    insert into fencepost.kind (name) values ('a');
    insert into fencepost.lane select queue_id, 4, kind_id from fencepost.queue, fencepost.kind;
    insert into fencepost.worker (session_no, session_id, name, build, queues, kinds, capacity)
    select n, decode(lpad(to_hex(n), 32, '0'), 'hex'), 'worker-' || n, 'test', '{default}', '{a}', 1
    from generate_series(1, 1000) n;
    insert into fencepost.worker_session select session_no, 1, 1, false, now() from fencepost.worker;
    insert into fencepost.job (job_id, queue_id, kind_id, priority, payload, idempotency_key)
    select fencepost.id_at(now()) | n, queue_id, kind_id, 4, '', case when n % 2 = 0 then 'key/' || n end
    from generate_series(1, 18000) n, fencepost.queue, fencepost.kind;
    insert into fencepost.scheduled
    select job_id, now(), queue_id, kind_id, 0, 4, 1, 0, 0 from fencepost.job where job_id & 65535 <= 3000;
    insert into fencepost.ready
    select job_id, job_id, queue_id, kind_id, 0, 4, 0, 0, 0 from fencepost.job where job_id & 65535 between 3001 and 6000;
    insert into fencepost.ready
    select job_id - 1, job_id, queue_id, kind_id, 0, 4, 1, 0, 0 from fencepost.job where job_id & 65535 between 6001 and 9000;
    select setval('fencepost.token_seq', 70000);
    insert into fencepost.lease
    select job_id, job_id & 65535, (job_id & 511) + 1, now(), queue_id, kind_id, 0, 4, 1, 0, 0
    from fencepost.job where job_id & 65535 between 9001 and 12000;
    insert into fencepost.finished
    select job_id, job_id & 65535, (job_id & 511) + 1, now(), now(), queue_id, kind_id, 'succeeded', 1, 0, 'done'
    from fencepost.job where job_id & 65535 between 12001 and 15000;
    insert into fencepost.dead
    select job_id, (job_id & 65535) + 50000, now(), queue_id, kind_id, 0, 4, 1, 0, 0, 'failed_for_good'
    from fencepost.job where job_id & 65535 > 15000;
    insert into fencepost.attempt_log
    select job_id, (job_id & 65535) + 50000, (job_id & 511) + 1, now(), now(), 1, 'failed', 'broken', 'it broke'
    from fencepost.job where job_id & 65535 not between 3001 and 6000;
    insert into fencepost.effect
    select coalesce(j.idempotency_key, j.job_id::text), j.idempotency_key is not null, j.job_id, f.token, now(), 'done'
    from fencepost.finished f join fencepost.job j using (job_id);
    insert into fencepost.tally (queue_id, scheduled, ready, leased, succeeded, dead)
    select queue_id, 3000, 6000, 3000, 3000, 3000 from fencepost.queue;
    analyze;
";
/// Low parts of ids of [`MANY`], one in each place.
const PLACES: [(i64, &str); 6] =
    [(100, "scheduled"), (3100, "ready"), (6100, "ready"), (9100, "leased"), (12100, "succeeded"), (15100, "dead")];
/// Tables that grow with the jobs. Names of partitions begin with their table's.
const LARGE: [&str; 9] = ["job", "ready", "scheduled", "lease", "finished", "dead", "attempt_log", "effect", "worker"];

fn dead_at_once(job: NewJob) -> NewJob {
    NewJob { retry: RetryOverrides { max_attempts: Some(1), ..RetryOverrides::default() }, ..job }
}

#[tokio::test]
async fn job_status_shows_result_last_error_worker_and_start_of_ended_jobs() -> Result<()> {
    if !present("psql", "postgresql-client")? {
        return Ok(());
    }
    program("scheduler")?;
    db_test(async |db| {
        let stage = Stage::start(db).await;
        let broken = "charge=sh -c 'echo card refused >&2; exit 75'";
        let _worker = stage.worker(&["--name", "worker-a", "--exec", "send_welcome=cat", "--exec", broken]);
        let done = stage.job_in(JobState::Succeeded, job("send_welcome", "welcome/7")).await;
        let dead = stage.job_in(JobState::Dead, dead_at_once(job("charge", "charge/7"))).await;
        let shown = "state, dead_reason, last_error, worker, convert_from(result, 'UTF8') as result,
            started_at between enqueued_at and finished_at as started";
        let looks = [
            (done, "succeeded,,,worker-a,hello,t\n"),
            (dead, "dead,attempts_exhausted,exit_75: card refused,worker-a,,t\n"),
        ];
        for (id, expected) in looks {
            let seen = psql(&db.url(), &format!("select {shown} from fencepost.job_status where job_id = {id}"));
            let seen = seen.expect("the view can be read");
            assert!(seen.ends_with(&format!("\n{expected}")), "{seen}");
            let worker = psql(&db.url(), &format!("select worker from fencepost.attempt_history where job_id = {id}"));
            assert_eq!(worker.expect("the view can be read"), "worker\nworker-a\n");
        }
    })
    .await;
    Ok(())
}

/// A plan's lines that read one of the large tables whole.
fn whole_reads(plan: &str) -> Vec<&str> {
    let reads_large = |line: &str| {
        let Some((_, table)) = line.split_once("Seq Scan on ") else { return false };
        LARGE.iter().any(|large| table.starts_with(large))
    };
    let lines = plan.lines().filter(|line| !line.contains("never executed"));
    lines.filter(|line| reads_large(line)).collect()
}

/// The plan of a look at one job, as it runs.
fn plan(db: &TestDatabase, view: &str, low: i64, mode: &str) -> String {
    let script = format!(
        "prepare look(bigint) as select * from fencepost.{view} where job_id = $1;
        set plan_cache_mode = {mode};
        select 'explain (analyze, costs off, timing off) execute look(' || max(job_id) || ')'
        from fencepost.job where job_id & 65535 = {low}
        \\gexec"
    );
    psql(&db.url(), &script).expect("the plan can be read")
}

#[tokio::test]
async fn views_find_one_job_among_many_without_reading_a_table_whole() -> Result<()> {
    if !present("psql", "postgresql-client")? {
        return Ok(());
    }
    db_test(async |db| {
        db.run(MANY).await;
        for view in ["job_status", "attempt_history", "job_policy"] {
            for (low, place) in PLACES {
                for mode in ["force_custom_plan", "force_generic_plan"] {
                    let plan = plan(db, view, low, mode);
                    assert!(plan.contains("Index Scan"), "{view}: {plan}");
                    assert!(whole_reads(&plan).is_empty(), "{view} of a {place} job, {mode}:\n{plan}");
                }
            }
        }
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn job_status_has_one_row_per_job_and_leaves_other_states_out() -> Result<()> {
    if !present("psql", "postgresql-client")? {
        return Ok(());
    }
    db_test(async |db| {
        db.run(MANY).await;
        let counted = psql(&db.url(), "select state, count(*) from fencepost.job_status group by 1 order by 1");
        let expected = "state,count\ndead,3000\nleased,3000\nready,6000\nscheduled,3000\nsucceeded,3000\n";
        assert_eq!(counted.expect("the view can be read"), expected);
        let plan = psql(&db.url(), "explain select * from fencepost.job_status where state = 'leased'");
        let plan = plan.expect("the plan can be read");
        assert!(plan.contains(" on lease "), "{plan}");
        for other in ["ready", "scheduled", "finished", "dead"] {
            assert!(!plan.contains(&format!(" on {other}")), "{other} is read:\n{plan}");
        }
    })
    .await;
    Ok(())
}
