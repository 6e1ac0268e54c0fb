//! States, claims and storage as the schema shows and enforces them.

use std::time::Duration;

use client::v1::JobState;
use queue_core::{NewJob, Start};
use testbed::eventually;

use crate::jobs::{attempts, enqueue, enqueue_all, is, job, jobs};
use crate::locks::{FIRST_READY, holding};
use crate::system::{PATIENCE, system};

#[tokio::test]
async fn states_are_visible_in_the_schema_and_transitions_enforced_in_every_update() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        let scripts = [("stays", "while [ ! -e go ]; do sleep 0.05; done"), ("fails", "exit 65"), ("works", "true")];
        let _worker = system.exec_worker(&[&scheduler], &scripts, &[]);
        let later = NewJob { start: Start::After(Duration::from_hours(1)), ..job("later") };
        for (job, state) in [
            (later, JobState::Scheduled),
            (job("nobody"), JobState::Ready),
            (job("stays"), JobState::Leased),
            (job("works"), JobState::Succeeded),
            (job("fails"), JobState::Dead),
        ] {
            let id = enqueue(&client, job).await;
            is(&client, id, state).await;
        }
        let states = "select count(distinct state) from fencepost.job_status
            where state in ('scheduled', 'ready', 'leased', 'succeeded', 'dead')";
        assert_eq!(system.db.number(states).await, 5);
        // What a wrong statement could try, the constraints refuse; the transaction that tried leaves nothing.
        system
            .db
            .run(
                "do $$
                declare wrong text;
                begin
                    foreach wrong in array array[
                        'update fencepost.lease set token = 0',
                        'update fencepost.lease set attempts = -1',
                        'update fencepost.lease set lease_losses = attempts + 1',
                        'update fencepost.lease set token = null',
                        'insert into fencepost.lease select * from fencepost.lease',
                        'update fencepost.dead set reason = ''bored''',
                        'update fencepost.finished set token = -1',
                        'insert into fencepost.finished select * from fencepost.finished',
                        'insert into fencepost.scheduled select * from fencepost.scheduled',
                        'update fencepost.worker_session set epoch = 0',
                        'update fencepost.job set priority = 10'
                    ] loop
                        begin
                            execute wrong;
                            raise exception 'not refused: %', wrong using errcode = 'ZZ999';
                        exception when integrity_constraint_violation then null;
                        end;
                    end loop;
                    begin
                        update fencepost.finished set state = 'finished';
                        raise exception 'an unknown state is not refused' using errcode = 'ZZ999';
                    exception when invalid_text_representation or datatype_mismatch then null;
                    end;
                end $$",
            )
            .await;
        std::fs::write(system.path("go"), "").expect("lets it end");
    })
    .await;
}

#[tokio::test]
async fn a_claim_is_committed_before_work_starts_and_no_transaction_is_open_while_a_job_runs() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        let script = "echo x >> started; while [ ! -e go ]; do sleep 0.05; done";
        let _worker = system.exec_worker(&[&scheduler], &[("a", script)], &[]);
        enqueue(&scheduler.client(), job("a")).await;
        system.wrote("started", 1).await;
        // Another connection sees the lease, so it is committed.
        assert_eq!(system.db.number("select count(*) from fencepost.lease").await, 1);
        let open = "select count(*) from pg_stat_activity
            where datname = current_database() and pid <> pg_backend_pid()
                and (xact_start < now() - interval '250 ms' or state like 'idle in transaction%')";
        // At some looks the scheduler may be between two statements of a beat; never for long.
        for _ in 0..20 {
            eventually(PATIENCE, "no transaction is open", async || system.db.number(open).await == 0).await;
        }
        let long = "select count(*) from pg_stat_activity where datname = current_database()
            and pid <> pg_backend_pid() and xact_start < now() - interval '1 second'";
        assert_eq!(system.db.number(long).await, 0);
        std::fs::write(system.path("go"), "").expect("lets it end");
        system.succeeded(1).await;
    })
    .await;
}

#[tokio::test]
async fn a_claim_skips_what_another_has_locked_instead_of_waiting_for_it() {
    system(async |system| {
        let scheduler = system.scheduler().await;
        enqueue_all(&scheduler.client(), jobs("a", 10)).await;
        holding(system, FIRST_READY, async || {
            let _worker = system.exec_worker(&[&scheduler], &[("a", "true")], &[]);
            system.succeeded(9).await;
            assert_eq!(system.db.number("select count(*) from fencepost.ready").await, 1);
        })
        .await;
        let _worker = system.exec_worker(&[&scheduler], &[("a", "true")], &[]);
        system.succeeded(10).await;
    })
    .await;
}

#[tokio::test]
async fn old_succeeded_rows_are_archived_by_dropping_their_partition_and_open_ones_stay() {
    const OLD: &str = "
        do $$ declare parent text; begin
            foreach parent in array array['job', 'finished', 'attempt_log'] loop
                execute format('create table fencepost.%I partition of fencepost.%I for values from (%s) to (%s)',
                    parent || '_20250601', parent, fencepost.id_at('2025-06-01 00:00+00'),
                    fencepost.id_at('2025-06-02 00:00+00'));
            end loop;
        end $$;
        insert into fencepost.job (job_id, queue_id, kind_id, priority, payload)
            select fencepost.id_at('2025-06-01 12:00+00') + n, 1, 1, 4, 'old' from generate_series(1, 2) n;
        insert into fencepost.finished (job_id, token, session_no, started_at, finished_at, queue_id, kind_id, state, attempts, lease_losses)
            select fencepost.id_at('2025-06-01 12:00+00') + 1, nextval('fencepost.token_seq'), 1, '2025-06-01 13:00+00',
                '2025-06-01 13:00+00', 1, 1, 'succeeded', 0, 0;
        insert into fencepost.scheduled (job_id, due_at, queue_id, kind_id, size, priority, attempts, lease_losses, undelivered)
            select fencepost.id_at('2025-06-01 12:00+00') + 2, '2099-01-01', 1, 1, 3, 4, 0, 0, 0;
        insert into fencepost.tally (queue_id, scheduled, succeeded) values (1, 1, 1)";
    system(async |system| {
        let scheduler = system.scheduler().await;
        enqueue(&scheduler.client(), attempts(job("a"), 1)).await;
        system.db.run(OLD).await;
        let mut once = system.reaper(&[&scheduler], &["--once"]);
        assert!(once.exit(PATIENCE).await.success());
        let left = "select count(*) from pg_class where relname = 'job_20250601'";
        assert_eq!(system.db.number(left).await, 0);
        assert_eq!(system.db.number("select count(*) from fencepost.finished").await, 0);
        let open = "select count(*) from fencepost.job_status where state = 'scheduled' and enqueued_at < '2025-07-01'";
        assert_eq!(system.db.number(open).await, 1);
    })
    .await;
}

#[tokio::test]
async fn plans_of_hot_statements_read_no_whole_table_as_tables_grow() {
    const MANY: i64 = 20_000;
    system(async |system| {
        let scheduler = system.scheduler().await;
        let client = scheduler.client();
        enqueue_all(&client, jobs("other", 20_000)).await;
        system.db.run("analyze").await;
        let read = "select coalesce(sum(seq_tup_read), 0)::bigint from pg_stat_user_tables
            where schemaname = 'fencepost' and (relname in ('ready', 'lease', 'scheduled', 'idempotency_key')
                or relname ~ '^(job|finished|attempt_log)_')";
        let settled = async || {
            // The statistics of a connection are told when it is idle for a second.
            let mut before = -1;
            eventually(PATIENCE, "the statistics are told", async || {
                tokio::time::sleep(Duration::from_millis(1_200)).await;
                let now = system.db.number(read).await;
                std::mem::replace(&mut before, now) == now
            })
            .await;
            before
        };
        let before = settled().await;
        let _worker = system.exec_worker(&[&scheduler], &[("a", "true"), ("fails", "exit 65")], &[]);
        enqueue_all(&client, jobs("a", 50)).await;
        enqueue_all(&client, jobs("fails", 10)).await;
        system.succeeded(50).await;
        system.dead(10).await;
        let after = settled().await;
        // Each of several hundred statements would read all of them if its plan were wrong.
        assert!(after - before < 2 * MANY, "{} rows were read by whole tables", after - before);
        let partial = "select count(*) from pg_index i join pg_class c on c.oid = i.indrelid
            where c.relnamespace = 'fencepost'::regnamespace and i.indpred is not null";
        assert!(system.db.number(partial).await >= 1, "there are partial indexes");
    })
    .await;
}
