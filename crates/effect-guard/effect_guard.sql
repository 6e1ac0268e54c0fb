-- The table of Fencepost's effect guard, for your own PostgreSQL: one row per effect that was applied.
--
-- Put it into your migrations. Whoever applies effects needs select, insert and update on it.
-- Remove old rows only when no job with their key can run any more: longer after than Fencepost keeps dead jobs, which
-- an operator may run again.
create table if not exists effect_guard (
    key text primary key check (char_length(key) between 1 and 1024),
    token bigint not null check (token > 0),
    applied_at timestamptz not null default now()
);

comment on table effect_guard is 'Effects of background jobs that were applied, so that none is applied twice.';
comment on column effect_guard.key is 'Idempotency key of the job, with a suffix where a job has several effects.';
comment on column effect_guard.token is 'Newest fencing token that came with the key. Older ones are refused.';
comment on column effect_guard.applied_at is 'When the transaction that applied the effect began.';
