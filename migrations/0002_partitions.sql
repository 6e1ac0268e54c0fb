-- Partitions by day of enqueue. The scheduler's role owns no table; it may call these functions, which run as their owner.

create table fencepost.job_kept partition of fencepost.job default;
create table fencepost.finished_kept partition of fencepost.finished default;
create table fencepost.attempt_log_kept partition of fencepost.attempt_log default;
comment on table fencepost.job_kept is 'Jobs whose partition was dropped while they were still open or had just ended.';
comment on table fencepost.finished_kept is 'As job_kept.';
comment on table fencepost.attempt_log_kept is 'As job_kept.';

create function fencepost.create_partitions(days_ahead integer) returns integer
language plpgsql security definer set search_path = fencepost, pg_temp as $$
declare
    first date := (now() at time zone 'utc')::date;
    day date;
    parent text;
    part text;
    created integer;
    made integer := 0;
begin
    if days_ahead not between 0 and 60 then
        raise exception 'days_ahead must be 0 to 60, is %', days_ahead;
    end if;
    -- One at a time: two schedulers may start together.
    perform pg_advisory_xact_lock(hashtext('fencepost.partitions'));
    for day in select first + n from generate_series(0, days_ahead) n loop
        created := 0;
        begin
            foreach parent in array array['job', 'finished', 'attempt_log'] loop
                part := parent || '_' || to_char(day, 'YYYYMMDD');
                if to_regclass('fencepost.' || part) is null then
                    execute format('create table fencepost.%I partition of fencepost.%I for values from (%s) to (%s)',
                        part, parent, fencepost.id_at(day::timestamp at time zone 'utc'),
                        fencepost.id_at((day + 1)::timestamp at time zone 'utc'));
                    created := created + 1;
                end if;
            end loop;
            made := made + created;
        exception when check_violation then
            -- Jobs of that day went to the default partition, because nobody was there to create theirs in time. They stay
            -- there, and the other days must not fail with this one.
            null;
        end;
    end loop;
    return made;
end $$;
comment on function fencepost.create_partitions is 'Creates the partitions of today and so many days ahead; returns how many.';

create function fencepost.drop_partition(keep interval) returns integer
language plpgsql security definer set search_path = fencepost, pg_temp as $$
declare
    day date;
    low bigint;
    high bigint;
    parent text;
begin
    if keep < interval '1 hour' then
        raise exception 'keep must be at least one hour, is %', keep;
    end if;
    perform pg_advisory_xact_lock(hashtext('fencepost.partitions'));
    -- The oldest day whose last job is older than that.
    select min(to_date(right(c.relname, 8), 'YYYYMMDD')) into day
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'fencepost.job'::regclass and c.relname ~ '^job_\d{8}$';
    if day is null or (day + 1)::timestamp at time zone 'utc' > now() - keep then
        return 0;
    end if;
    low := fencepost.id_at(day::timestamp at time zone 'utc');
    high := fencepost.id_at((day + 1)::timestamp at time zone 'utc');
    foreach parent in array array['job', 'finished', 'attempt_log'] loop
        execute format('alter table fencepost.%I detach partition fencepost.%I', parent, parent || to_char(day, '_YYYYMMDD'));
    end loop;
    -- What is still open, dead or only just ended moves to the default partition; nothing else fits its range any more.
    create temporary table kept on commit drop as
        select job_id from scheduled where job_id >= low and job_id < high
        union all select job_id from ready where job_id >= low and job_id < high
        union all select job_id from lease where job_id >= low and job_id < high
        union all select job_id from dead where job_id >= low and job_id < high;
    execute format('insert into kept select job_id from fencepost.%I where finished_at > now() - $1',
        'finished' || to_char(day, '_YYYYMMDD')) using keep;
    foreach parent in array array['job', 'finished', 'attempt_log'] loop
        execute format('insert into fencepost.%I select * from fencepost.%I where job_id in (select job_id from kept)',
            parent, parent || to_char(day, '_YYYYMMDD'));
        execute format('drop table fencepost.%I', parent || to_char(day, '_YYYYMMDD'));
    end loop;
    drop table kept;
    return 3;
end $$;
comment on function fencepost.drop_partition is 'Drops the oldest day that is past retention, keeping what is open, dead or ended within it; returns how many tables went.';

revoke all on function fencepost.create_partitions, fencepost.drop_partition from public;

select fencepost.create_partitions(7);
