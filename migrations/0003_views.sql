-- What a person with psql looks at, and the audit.

create view fencepost.job_status as
select
    j.job_id,
    q.name as queue,
    k.name as kind,
    case
        when l.job_id is not null then 'leased'
        when f.job_id is not null then f.state::text
        when d.job_id is not null then 'dead'
        when s.job_id is not null then 'scheduled'
        when r.job_id is not null then 'ready'
    end as state,
    j.priority,
    coalesce(l.attempts, f.attempts, d.attempts, s.attempts, r.attempts) as attempts_used,
    coalesce(l.lease_losses, f.lease_losses, d.lease_losses, s.lease_losses, r.lease_losses) as lease_losses,
    j.idempotency_key,
    fencepost.id_time(j.job_id) as enqueued_at,
    s.due_at,
    coalesce(l.granted_at, f.started_at) as started_at,
    coalesce(f.finished_at, d.died_at) as finished_at,
    coalesce(l.token, nullif(f.token, 0), nullif(d.token, 0)) as token,
    w.name as worker,
    d.reason as dead_reason,
    e.effect,
    j.parent_id
from fencepost.job j
join fencepost.queue q using (queue_id)
join fencepost.kind k using (kind_id)
left join fencepost.lease l using (job_id)
left join fencepost.finished f using (job_id)
left join fencepost.dead d using (job_id)
left join fencepost.scheduled s using (job_id)
left join lateral (
    select n.job_id, n.attempts, n.lease_losses
    from fencepost.ready n
    where n.queue_id = j.queue_id and n.priority = j.priority and n.kind_id = j.kind_id
        and n.position = j.job_id and n.job_id = j.job_id
    union all
    select m.job_id, m.attempts, m.lease_losses
    from fencepost.ready m
    where m.job_id = j.job_id and m.position <> m.job_id
) r on true
left join fencepost.worker w on w.session_no = coalesce(l.session_no, f.session_no)
left join fencepost.effect e
    on e.keyed = (j.idempotency_key is not null) and e.key = coalesce(j.idempotency_key, j.job_id::text);
comment on view fencepost.job_status is 'One row per job: its state and everything known of it but the payload. History: attempt_log.';

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
select job_id, token, number, ended::text as ended, error_code, error, session_no, started_at, ended_at
from fencepost.attempt_log
union all
select job_id, token, attempts + 1, 'succeeded', null, null, session_no, started_at, finished_at
from fencepost.finished
where state = 'succeeded';
comment on view fencepost.attempt_history is 'Every ended attempt.';

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
    from fencepost.lease where token > (select last_value from fencepost.token_seq)
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
