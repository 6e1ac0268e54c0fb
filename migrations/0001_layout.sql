-- The layout: which table holds a job is its state.
--
-- job is written once and never changed. ready, scheduled, lease, finished and dead say where the job is; every transition
-- deletes from one of them and inserts into another in the same transaction. Hot tables are narrow and have no foreign
-- keys; what those would hold is checked by audit().

create schema if not exists fencepost;

-- Identities -----------------------------------------------------------------------------------------------------------

create table fencepost.installation (
    singleton boolean primary key default true check (singleton),
    shard smallint not null default 0 check (shard between 0 and 63),
    timeline text not null default ''
);
comment on table fencepost.installation is 'One row: which database this is among several, and the WAL timeline last seen.';
comment on column fencepost.installation.shard is 'Part of every job id, so that several databases behind one scheduler never give the same id.';
comment on column fencepost.installation.timeline is 'WAL timeline last seen. A new one means a failover, after which the token sequence is skipped ahead.';
insert into fencepost.installation (timeline)
values (case when pg_is_in_recovery() then '' else left(pg_walfile_name(pg_current_wal_lsn()), 8) end);

create sequence fencepost.job_seq cache 64;
comment on sequence fencepost.job_seq is 'Low part of job ids; its order means nothing.';

-- With a cache each connection would hold a range of its own, and a later claim could get a smaller number.
create sequence fencepost.token_seq cache 1;
comment on sequence fencepost.token_seq is 'Claims. A fencing token is the number of its claim, shifted by 10 bits, and the place in it.';

create sequence fencepost.session_seq;
create sequence fencepost.scheduler_seq;

-- Declared as stable as what it is made of, or the planner would call it and not inline it: a call parses the body.
create function fencepost.id_at(at timestamptz) returns bigint
language sql stable strict parallel safe
return ((floor(extract(epoch from at) * 1000)::bigint - 1735689600000) << 22);
comment on function fencepost.id_at is 'The smallest job id or position of that millisecond: milliseconds since 2025 (41 bits), shard (6), sequence (16).';

create function fencepost.id_time(id bigint) returns timestamptz
language sql immutable strict parallel safe
return to_timestamp(((id >> 22) + 1735689600000) / 1000.0);
comment on function fencepost.id_time is 'When a job id or position was given out, by the clock of the database.';

-- A view, because a function that reads a table is never inlined.
create view fencepost.id_base as
select fencepost.id_at(now()) | (shard::bigint << 16) as base
from fencepost.installation;
comment on view fencepost.id_base is 'What ids of this transaction share; the rest is job_seq & 65535.';

-- Registries -----------------------------------------------------------------------------------------------------------

create table fencepost.queue (
    queue_id integer generated always as identity primary key,
    name text collate "C" not null unique check (name ~ '^[A-Za-z0-9_.:/-]{1,128}$'),
    max_attempts integer not null default 5 check (max_attempts between 1 and 10000),
    max_lease_losses integer not null default 3 check (max_lease_losses between 1 and 10000),
    backoff_base_ms bigint not null default 1000 check (backoff_base_ms between 0 and 2592000000),
    backoff_factor float8 not null default 2 check (backoff_factor between 1 and 100),
    backoff_cap_ms bigint not null default 64000 check (backoff_cap_ms between 0 and 2592000000),
    jitter float8 not null default 1 check (jitter between 0 and 1),
    timeout_ms bigint not null default 20000 check (timeout_ms between 1 and 2592000000),
    created_at timestamptz not null default now()
);
comment on table fencepost.queue is 'Queues, and what holds for their jobs where a job says nothing.';

create table fencepost.kind (
    kind_id integer generated always as identity primary key,
    name text collate "C" not null unique check (name ~ '^[A-Za-z0-9_.:/-]{1,128}$'),
    created_at timestamptz not null default now()
);
comment on table fencepost.kind is 'Kinds of jobs.';

create table fencepost.lane (
    queue_id integer not null,
    priority smallint not null check (priority between 0 and 9),
    kind_id integer not null,
    primary key (queue_id, priority, kind_id)
);
comment on table fencepost.lane is 'Every (queue, priority, kind) that ever held a ready job. Claims go lane by lane, so that kinds which no worker knows hide nothing.';

-- Jobs -----------------------------------------------------------------------------------------------------------------

create table fencepost.job (
    job_id bigint not null check (job_id > 0),
    parent_id bigint,
    timeout_ms bigint,
    backoff_base_ms bigint,
    backoff_cap_ms bigint,
    backoff_factor float8,
    jitter float8,
    queue_id integer not null,
    kind_id integer not null,
    max_attempts integer,
    max_lease_losses integer,
    priority smallint not null check (priority between 0 and 9),
    payload bytea not null,
    headers jsonb,
    idempotency_key text collate "C" check (char_length(idempotency_key) between 1 and 256),
    traceparent text,
    primary key (job_id)
) partition by range (job_id);
comment on table fencepost.job is 'What was enqueued. Written once, never changed. Null in the retry columns and timeout_ms: the queue decides.';
comment on column fencepost.job.parent_id is 'The job whose settlement enqueued this one.';

create table fencepost.ready (
    position bigint not null,
    job_id bigint not null,
    queue_id integer not null,
    kind_id integer not null,
    size integer not null check (size >= 0),
    priority smallint not null check (priority between 0 and 9),
    attempts smallint not null check (attempts >= 0),
    lease_losses smallint not null check (lease_losses between 0 and attempts),
    undelivered smallint not null check (undelivered >= 0),
    primary key (queue_id, priority, kind_id, position, job_id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
comment on table fencepost.ready is 'Jobs that wait for a free slot. Claimed from the lowest position of a lane.';
comment on column fencepost.ready.position is 'Order within the lane: the job id of a first run, that of the front or of now for one that came back.';
comment on column fencepost.ready.size is 'Bytes of payload and headers, so that a claim can be bounded by them.';
comment on column fencepost.ready.attempts is 'Attempts used up: failures and lease losses.';
comment on column fencepost.ready.undelivered is 'Grants in a row that were never acknowledged.';
create unique index ready_moved_key on fencepost.ready (job_id) where position <> job_id;

create table fencepost.scheduled (
    job_id bigint primary key,
    due_at timestamptz not null,
    queue_id integer not null,
    kind_id integer not null,
    size integer not null check (size >= 0),
    priority smallint not null check (priority between 0 and 9),
    attempts smallint not null check (attempts >= 0),
    lease_losses smallint not null check (lease_losses between 0 and attempts),
    undelivered smallint not null check (undelivered >= 0)
);
comment on table fencepost.scheduled is 'Jobs for later: delays, back-offs, snoozes. Promoted to ready when due.';
create index scheduled_due_idx on fencepost.scheduled (due_at);

create table fencepost.lease (
    job_id bigint primary key,
    token bigint not null check (token > 0),
    session_no bigint not null,
    granted_at timestamptz not null,
    queue_id integer not null,
    kind_id integer not null,
    size integer not null check (size >= 0),
    priority smallint not null check (priority between 0 and 9),
    attempts smallint not null check (attempts >= 0),
    lease_losses smallint not null check (lease_losses between 0 and attempts),
    undelivered smallint not null check (undelivered >= 0)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
comment on table fencepost.lease is 'Jobs that a worker holds. One row per job, so at most one lease at any instant. Lives as long as its session.';
comment on column fencepost.lease.token is 'Fencing token. Every write on behalf of the holder must carry it.';
create index lease_session_idx on fencepost.lease (session_no);

create type fencepost.final_state as enum ('succeeded', 'cancelled');

create table fencepost.finished (
    job_id bigint not null,
    token bigint not null check (token >= 0),
    session_no bigint not null,
    started_at timestamptz not null,
    finished_at timestamptz not null,
    queue_id integer not null,
    kind_id integer not null,
    state fencepost.final_state not null,
    attempts smallint not null check (attempts >= 0),
    lease_losses smallint not null check (lease_losses between 0 and attempts),
    result bytea,
    primary key (job_id)
) partition by range (job_id);
comment on table fencepost.finished is 'Jobs that ended well or were cancelled. Append-only.';
comment on column fencepost.finished.token is 'Token of the lease that settled it; 0 where a job was cancelled without one.';
comment on column fencepost.finished.attempts is 'Attempts used up before the one that succeeded.';

create table fencepost.dead (
    job_id bigint primary key,
    token bigint not null check (token >= 0),
    died_at timestamptz not null,
    queue_id integer not null,
    kind_id integer not null,
    size integer not null check (size >= 0),
    priority smallint not null check (priority between 0 and 9),
    attempts smallint not null check (attempts >= 0),
    lease_losses smallint not null check (lease_losses between 0 and attempts),
    undelivered smallint not null check (undelivered >= 0),
    reason text not null check (reason in
        ('failed_for_good', 'attempts_exhausted', 'lease_losses_exhausted', 'undeliverable'))
);
comment on table fencepost.dead is 'Jobs that ended badly. Kept until redriven or purged.';

create type fencepost.attempt_end as enum
    ('succeeded', 'failed', 'lost', 'released', 'snoozed', 'undelivered', 'timed_out');

create table fencepost.attempt_log (
    job_id bigint not null,
    token bigint not null check (token > 0),
    session_no bigint not null,
    started_at timestamptz not null,
    ended_at timestamptz not null,
    number smallint not null check (number > 0),
    ended fencepost.attempt_end not null check (ended <> 'succeeded'),
    error_code text check (char_length(error_code) <= 128),
    error text check (char_length(error) <= 1000),
    primary key (job_id, token)
) partition by range (job_id);
comment on table fencepost.attempt_log is 'Attempts that ended other than well. Append-only. With finished it holds a trace of every token that was used up.';

-- Idempotency ----------------------------------------------------------------------------------------------------------

create table fencepost.idempotency_key (
    key text collate "C" primary key check (char_length(key) between 1 and 256),
    job_id bigint not null,
    fingerprint bytea not null check (octet_length(fingerprint) = 16)
);
comment on table fencepost.idempotency_key is 'The first job of each key. Outlives the job.';
comment on column fencepost.idempotency_key.fingerprint is 'First 16 bytes of the SHA-256 of queue, kind and payload: another request under the same key is refused.';
create index idempotency_key_age_idx on fencepost.idempotency_key using brin (job_id);

create table fencepost.effect (
    key text collate "C" not null,
    keyed boolean not null,
    job_id bigint not null,
    token bigint not null check (token > 0),
    committed_at timestamptz not null,
    effect bytea not null,
    primary key (key, keyed)
);
comment on table fencepost.effect is 'Committed effects: one per idempotency key, or per job where it has none.';
comment on column fencepost.effect.key is 'The idempotency key, or the job id as a text where keyed is false.';
create index effect_age_idx on fencepost.effect using brin (job_id);

-- Processes ------------------------------------------------------------------------------------------------------------

create table fencepost.scheduler (
    scheduler_id bigint primary key,
    name text not null,
    beat_at timestamptz not null,
    resumed_at timestamptz not null
) with (fillfactor = 50);
comment on table fencepost.scheduler is 'Schedulers. One row each, renewed every second.';
comment on column fencepost.scheduler.resumed_at is 'Start, or the last beat before which no scheduler had beaten for a while: no session expires within one lease time after it.';

create table fencepost.worker (
    session_no bigint primary key,
    session_id bytea not null unique check (octet_length(session_id) = 16),
    name text not null,
    build text not null,
    queues text[] not null,
    kinds text[] not null,
    capacity integer not null,
    opened_at timestamptz not null default now()
);
comment on table fencepost.worker is 'Worker sessions, one per incarnation of a process: what does not change.';

create table fencepost.worker_session (
    session_no bigint primary key,
    owner bigint not null,
    epoch integer not null check (epoch > 0),
    dead boolean not null default false,
    expires_at timestamptz not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
comment on table fencepost.worker_session is 'Liveness of worker sessions: one narrow row each, renewed by heartbeats.';
comment on column fencepost.worker_session.owner is 'The scheduler that serves the session.';
comment on column fencepost.worker_session.epoch is 'Raised by each Hello: what an earlier owner does on its own account changes nothing.';
comment on column fencepost.worker_session.dead is 'Final.';

create table fencepost.maintenance (
    singleton boolean primary key default true check (singleton),
    holder text not null default '',
    token bigint not null default 0,
    expires_at timestamptz not null default '-infinity',
    passed_at timestamptz not null default '-infinity'
);
comment on table fencepost.maintenance is 'One row: the fenced lease of the reaper that acts, and when its last pass ended.';
insert into fencepost.maintenance default values;

-- Counts ---------------------------------------------------------------------------------------------------------------

create table fencepost.tally (
    queue_id integer not null,
    scheduled bigint not null default 0,
    ready bigint not null default 0,
    leased bigint not null default 0,
    succeeded bigint not null default 0,
    dead bigint not null default 0,
    cancelled bigint not null default 0
) with (autovacuum_vacuum_scale_factor = 0.02);
comment on table fencepost.tally is 'Changes in the number of jobs by state: one appended row per batch and queue, folded now and then. Their sums are exact.';
