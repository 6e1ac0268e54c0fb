-- What a person with psql looks at, and the audit.

create view fencepost.queue_status as
select
    q.name as queue,
    coalesce(t.scheduled, 0) as scheduled,
    coalesce(t.ready, 0) as ready,
    coalesce(t.leased, 0) as leased,
    coalesce(t.succeeded, 0) as succeeded,
    coalesce(t.dead, 0) as dead,
    coalesce(t.cancelled, 0) as cancelled,
    now() - fencepost.id_time(o.position) as oldest_ready_age
from fencepost.queue q
left join (
    select
        queue_id,
        sum(scheduled) as scheduled, sum(ready) as ready, sum(leased) as leased, sum(succeeded) as succeeded,
        sum(dead) as dead, sum(cancelled) as cancelled
    from fencepost.tally
    group by queue_id
) t using (queue_id)
cross join lateral (
    select min(first.position) as position
    from fencepost.lane l
    cross join lateral (
        select r.position
        from fencepost.ready r
        where r.queue_id = l.queue_id and r.priority = l.priority and r.kind_id = l.kind_id
        order by r.queue_id, r.priority, r.kind_id, r.position
        limit 1
    ) first
    where l.queue_id = q.queue_id
) o;
comment on view fencepost.queue_status is 'One row per queue: jobs by state, and how long the oldest ready one has waited. succeeded and cancelled count since the queue came into being. Scans no jobs.';

-- One branch per state, each with its state as a constant: a condition on state leaves the other branches out, and one on
-- job_id is an index look-up in each.
create view fencepost.job_status as
select
    p.job_id,
    q.name as queue,
    k.name as kind,
    p.state,
    p.priority,
    p.attempts as attempts_used,
    p.lease_losses,
    p.idempotency_key,
    fencepost.id_time(p.job_id) as enqueued_at,
    p.due_at,
    p.started_at,
    p.finished_at,
    nullif(p.token, 0) as token,
    w.name as worker,
    p.dead_reason,
    (
        select coalesce(nullif(concat_ws(': ', nullif(a.error_code, ''), nullif(a.error, '')), ''), a.ended::text)
        from fencepost.attempt_log a
        where a.job_id = p.job_id and a.ended not in ('released', 'snoozed')
        order by a.token desc
        limit 1
    ) as last_error,
    p.result,
    e.effect,
    p.parent_id
from (
    select
        'scheduled' as state, j.job_id, j.queue_id, j.kind_id, j.priority, j.idempotency_key, j.parent_id,
        s.attempts, s.lease_losses, s.due_at, null::timestamptz as started_at, null::timestamptz as finished_at,
        null::bigint as token, null::bigint as session_no, null::text as dead_reason, null::bytea as result
    from fencepost.scheduled s
    join fencepost.job j using (job_id)
    union all
    select
        'ready', j.job_id, j.queue_id, j.kind_id, j.priority, j.idempotency_key, j.parent_id,
        r.attempts, r.lease_losses, null, null, null, null, null, null, null
    from fencepost.ready r
    join fencepost.job j on j.job_id = r.job_id and j.job_id = r.position
        and j.queue_id = r.queue_id and j.priority = r.priority and j.kind_id = r.kind_id
    union all
    select
        'ready', j.job_id, j.queue_id, j.kind_id, j.priority, j.idempotency_key, j.parent_id,
        r.attempts, r.lease_losses, null, null, null, null, null, null, null
    from fencepost.ready r
    join fencepost.job j using (job_id)
    where r.position <> r.job_id
    union all
    select
        'leased', j.job_id, j.queue_id, j.kind_id, j.priority, j.idempotency_key, j.parent_id,
        l.attempts, l.lease_losses, null, l.granted_at, null, l.token, l.session_no, null, null
    from fencepost.lease l
    join fencepost.job j using (job_id)
    union all
    select
        'succeeded', j.job_id, j.queue_id, j.kind_id, j.priority, j.idempotency_key, j.parent_id,
        f.attempts, f.lease_losses, null, f.started_at, f.finished_at, f.token, f.session_no, null, f.result
    from fencepost.finished f
    join fencepost.job j using (job_id)
    where f.state = 'succeeded'
    union all
    select
        'cancelled', j.job_id, j.queue_id, j.kind_id, j.priority, j.idempotency_key, j.parent_id,
        f.attempts, f.lease_losses, null, case when f.token > 0 then f.started_at end, f.finished_at, f.token,
        f.session_no, null, f.result
    from fencepost.finished f
    join fencepost.job j using (job_id)
    where f.state = 'cancelled'
    union all
    select
        'dead', j.job_id, j.queue_id, j.kind_id, j.priority, j.idempotency_key, j.parent_id,
        d.attempts, d.lease_losses, null, a.started_at, d.died_at, d.token, a.session_no, d.reason, null
    from fencepost.dead d
    join fencepost.job j using (job_id)
    left join fencepost.attempt_log a on a.job_id = j.job_id and a.token = d.token
) p
join fencepost.queue q using (queue_id)
join fencepost.kind k using (kind_id)
left join fencepost.worker w using (session_no)
left join fencepost.effect e
    on e.keyed = (p.idempotency_key is not null) and e.key = coalesce(p.idempotency_key, p.job_id::text);
comment on view fencepost.job_status is 'One row per job: its state and everything known of it but the payload. History: attempt_history.';
comment on column fencepost.job_status.started_at is 'When the lease was granted that holds the job or ended it.';
comment on column fencepost.job_status.worker is 'The worker that holds the job, or held it when it ended.';
comment on column fencepost.job_status.last_error is 'Code and text of the last attempt that failed, was lost, ran out of time or was not delivered.';
comment on column fencepost.job_status.result is 'What the handler returned.';

create view fencepost.job_policy as
select
    j.job_id,
    coalesce(j.max_attempts, q.max_attempts) as max_attempts,
    coalesce(j.max_lease_losses, q.max_lease_losses) as max_lease_losses,
    coalesce(j.backoff_base_ms, q.backoff_base_ms) as backoff_base_ms,
    coalesce(j.backoff_factor, q.backoff_factor) as backoff_factor,
    coalesce(j.backoff_cap_ms, q.backoff_cap_ms) as backoff_cap_ms,
    coalesce(j.jitter, q.jitter) as jitter,
    coalesce(j.timeout_ms, q.timeout_ms) as timeout_ms
from fencepost.job j
join fencepost.queue q using (queue_id);
comment on view fencepost.job_policy is 'The retry policy and timeout that hold for each job: its own, else its queue''s.';

create view fencepost.attempt_history as
select
    a.job_id, a.token, a.number, a.ended::text as ended, a.error_code, a.error, a.session_no, w.name as worker,
    a.started_at, a.ended_at
from fencepost.attempt_log a
left join fencepost.worker w using (session_no)
union all
select
    f.job_id, f.token, f.attempts + 1, 'succeeded', null, null, f.session_no, w.name, f.started_at, f.finished_at
from fencepost.finished f
left join fencepost.worker w using (session_no)
where f.state = 'succeeded';
comment on view fencepost.attempt_history is 'Every ended attempt, and the name of the worker that made it.';

create function fencepost.audit() returns setof text
language sql stable parallel safe
begin atomic
    with place as (
        select job_id, 'scheduled' as place, queue_id from fencepost.scheduled
        union all select job_id, 'ready', queue_id from fencepost.ready
        union all select job_id, 'leased', queue_id from fencepost.lease
        union all select job_id, state::text, queue_id from fencepost.finished
        union all select job_id, 'dead', queue_id from fencepost.dead
    ), token as (
        select token from fencepost.lease
        union all select token from fencepost.attempt_log
        union all select token from fencepost.finished where token > 0
    ), counted as (
        select
            queue_id,
            count(*) filter (where place = 'scheduled') as scheduled,
            count(*) filter (where place = 'ready') as ready,
            count(*) filter (where place = 'leased') as leased,
            count(*) filter (where place = 'dead') as dead
        from place group by queue_id
    ), tallied as (
        select
            queue_id,
            sum(scheduled) as scheduled, sum(ready) as ready, sum(leased) as leased, sum(dead) as dead
        from fencepost.tally group by queue_id
    )
    select format('job %s is in %s states: %s', job_id, count(p.job_id), string_agg(place, ', '))
    from fencepost.job j left join place p using (job_id)
    group by job_id having count(p.job_id) <> 1
    union all
    select format('job %s is %s but has no row in job', p.job_id, place)
    from place p left join fencepost.job j using (job_id)
    where j.job_id is null
    union all
    select format('token %s was used %s times', token, count(*)) from token group by token having count(*) > 1
    union all
    select format('job %s is leased to session %s, which does not exist', l.job_id, l.session_no)
    from fencepost.lease l left join fencepost.worker_session s using (session_no)
    where s.session_no is null
    union all
    select format('job %s has a token above the sequence: %s', job_id, token)
    from fencepost.lease where token >> 10 > (select last_value from fencepost.token_seq)
    union all
    select format('key %L belongs to job %s, which carries another key', k.key, k.job_id)
    from fencepost.idempotency_key k join fencepost.job j using (job_id)
    where j.idempotency_key is distinct from k.key
    union all
    select format('lane (%s, %s, %s) holds ready jobs but is not registered', queue_id, priority, kind_id)
    from (select queue_id, priority, kind_id from fencepost.ready
          except select queue_id, priority, kind_id from fencepost.lane) unknown
    union all
    select format('queue %s: tally says %s scheduled, %s ready, %s leased, %s dead; there are %s, %s, %s, %s',
        queue_id, t.scheduled, t.ready, t.leased, t.dead,
        coalesce(c.scheduled, 0), coalesce(c.ready, 0), coalesce(c.leased, 0), coalesce(c.dead, 0))
    from tallied t full join counted c using (queue_id)
    where (coalesce(t.scheduled, 0), coalesce(t.ready, 0), coalesce(t.leased, 0), coalesce(t.dead, 0))
        <> (coalesce(c.scheduled, 0), coalesce(c.ready, 0), coalesce(c.leased, 0), coalesce(c.dead, 0));
end;
comment on function fencepost.audit is 'One line per violated invariant of the storage; none if all hold. Reads everything: for tests and a rare pass.';
