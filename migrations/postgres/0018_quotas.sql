-- Quotas: what a tenant may have, what it has, and what it did in this minute.
-- Same number, tables and columns as migrations/sqlite/0018_quotas.sql.

-- Row-level security would hide the tasks that are counted below from whoever owns them.
select set_config('reveille.tenant', '*', true);

-- The row of '*' is what `[quotas]` says, written by each instance when it starts. The others are overrides; a null is
-- as '*' has it.
create table tenant_quotas (
    tenant_id               text primary key,
    tasks                   bigint,
    event_tasks_per_source  bigint,
    events_per_minute       bigint,
    fires_per_minute        bigint,
    polls                   bigint,
    streams                 bigint,
    updated_at              timestamptz not null
);
insert into tenant_quotas (tenant_id, tasks, event_tasks_per_source, events_per_minute, fires_per_minute, polls,
                           streams, updated_at)
values ('*', 100000, 1000, 60000, 60000, 1000, 50, '1970-01-01T00:00:00Z');

-- Counted by triggers, so that no statement that writes tasks can leave the counting out and none needs a round trip
-- more. A row is locked by the tenant's own writes alone, from the end of their statement until they commit.
create table tenant_usage (
    tenant_id   text primary key,
    tasks       bigint not null,
    polls       bigint not null
) with (fillfactor = 50);
create table event_task_counts (
    tenant_id   text not null,
    source      text not null,
    tasks       bigint not null,
    primary key (tenant_id, source)
);
create index event_task_counts_fullest on event_task_counts (tenant_id, tasks);

-- What was done in the minute that is told, over all instances, as far as they have asked. `granted` is what the last one
-- that asked was given.
create table quota_minutes (
    tenant_id   text not null,
    quota       text not null,
    minute      bigint not null,
    used        bigint not null,
    granted     bigint not null,
    primary key (tenant_id, quota)
) with (fillfactor = 50);

insert into tenant_usage (tenant_id, tasks, polls)
select tenant_id, count(*), count(*) filter (where trigger_type = 'condition') from tasks group by tenant_id;
insert into event_task_counts (tenant_id, source, tasks)
select tenant_id, coalesce(spec #>> '{trigger,source}', ''), count(*) from tasks where trigger_type = 'event' group by 1, 2;

-- The row of tenant_usage is locked first, and rows in the order of their keys, so that no two writes wait for each other.
create function count_made_tasks() returns trigger language plpgsql as $$
declare
    refused text;
begin
    with counted as (
        insert into tenant_usage as u (tenant_id, tasks, polls)
        select tenant_id, count(*), count(*) filter (where trigger_type = 'condition')
          from made group by tenant_id order by tenant_id
        on conflict (tenant_id) do update set tasks = u.tasks + excluded.tasks, polls = u.polls + excluded.polls
        returning tenant_id, tasks, polls
    ), added as (
        select tenant_id, count(*) as tasks, count(*) filter (where trigger_type = 'condition') as polls
          from made group by tenant_id
    ), held as (
        select c.tenant_id, 'tasks' as quota, c.tasks as has, a.tasks as more,
               coalesce((select q.tasks from tenant_quotas q where q.tenant_id = c.tenant_id), d.tasks) as most
          from counted c join added a using (tenant_id), (select * from tenant_quotas where tenant_id = '*') d
        union all
        select c.tenant_id, 'polls', c.polls, a.polls,
               coalesce((select q.polls from tenant_quotas q where q.tenant_id = c.tenant_id), d.polls)
          from counted c join added a using (tenant_id), (select * from tenant_quotas where tenant_id = '*') d
         where a.polls > 0
    )
    select concat_ws(' ', 'quota_exceeded', quota, most, has - more, tenant_id) into refused
      from held where has > most limit 1;
    if refused is null and exists (select from made where trigger_type = 'event') then
        with listening as (
            select tenant_id, coalesce(spec #>> '{trigger,source}', '') as source, count(*) as tasks
              from made where trigger_type = 'event' group by 1, 2
        ), counted as (
            insert into event_task_counts as c (tenant_id, source, tasks)
            select tenant_id, source, tasks from listening order by tenant_id, source
            on conflict (tenant_id, source) do update set tasks = c.tasks + excluded.tasks
            returning tenant_id, source, tasks
        ), held as (
            select c.tenant_id, c.tasks as has, l.tasks as more,
                   coalesce((select q.event_tasks_per_source from tenant_quotas q where q.tenant_id = c.tenant_id),
                            (select q.event_tasks_per_source from tenant_quotas q where q.tenant_id = '*')) as most
              from counted c join listening l using (tenant_id, source)
        )
        select concat_ws(' ', 'quota_exceeded', 'event_tasks_per_source', most, has - more, tenant_id) into refused
          from held where has > most limit 1;
    end if;
    if refused is not null then
        raise exception using errcode = 'RVQ01', message = refused;
    end if;
    return null;
end
$$;

create function count_gone_tasks() returns trigger language plpgsql as $$
begin
    update tenant_usage u set tasks = u.tasks - g.tasks, polls = u.polls - g.polls
      from (select tenant_id, count(*) as tasks, count(*) filter (where trigger_type = 'condition') as polls
              from gone group by tenant_id) g
     where u.tenant_id = g.tenant_id;
    if exists (select from gone where trigger_type = 'event') then
        update event_task_counts c set tasks = c.tasks - g.tasks
          from (select tenant_id, coalesce(spec #>> '{trigger,source}', '') as source, count(*) as tasks
                  from gone where trigger_type = 'event' group by 1, 2) g
         where c.tenant_id = g.tenant_id and c.source = g.source;
        delete from event_task_counts c
         using (select distinct tenant_id, coalesce(spec #>> '{trigger,source}', '') as source
                  from gone where trigger_type = 'event') g
         where c.tenant_id = g.tenant_id and c.source = g.source and c.tasks <= 0;
    end if;
    return null;
end
$$;

create function count_changed_task() returns trigger language plpgsql as $$
declare
    more constant bigint := (new.trigger_type = 'condition')::int - (old.trigger_type = 'condition')::int;
    has bigint;
    most bigint;
begin
    update tenant_usage set polls = polls + more where tenant_id = new.tenant_id returning polls into has;
    select coalesce((select polls from tenant_quotas where tenant_id = new.tenant_id), polls) into most
      from tenant_quotas where tenant_id = '*';
    if more > 0 and has > most then
        raise exception using errcode = 'RVQ01',
              message = concat_ws(' ', 'quota_exceeded', 'polls', most, has - more, new.tenant_id);
    end if;
    if old.trigger_type = 'event' then
        update event_task_counts set tasks = tasks - 1
         where tenant_id = old.tenant_id and source = coalesce(old.spec #>> '{trigger,source}', '');
        delete from event_task_counts
         where tenant_id = old.tenant_id and source = coalesce(old.spec #>> '{trigger,source}', '') and tasks <= 0;
    end if;
    if new.trigger_type = 'event' then
        insert into event_task_counts as c (tenant_id, source, tasks)
        values (new.tenant_id, coalesce(new.spec #>> '{trigger,source}', ''), 1)
        on conflict (tenant_id, source) do update set tasks = c.tasks + 1
        returning tasks into has;
        select coalesce((select event_tasks_per_source from tenant_quotas where tenant_id = new.tenant_id),
                        event_tasks_per_source) into most
          from tenant_quotas where tenant_id = '*';
        if has > most then
            raise exception using errcode = 'RVQ01',
                  message = concat_ws(' ', 'quota_exceeded', 'event_tasks_per_source', most, has - 1, new.tenant_id);
        end if;
    end if;
    return null;
end
$$;

create trigger tasks_made after insert on tasks
    referencing new table as made for each statement execute function count_made_tasks();
create trigger tasks_gone after delete on tasks
    referencing old table as gone for each statement execute function count_gone_tasks();
create trigger tasks_changed after update of trigger_type, spec on tasks for each row
    when (old.trigger_type <> new.trigger_type
          or new.trigger_type = 'event' and old.spec #>> '{trigger,source}' is distinct from new.spec #>> '{trigger,source}')
    execute function count_changed_task();

alter table tenant_quotas enable row level security;
alter table tenant_quotas force row level security;
create policy tenant on tenant_quotas using (current_setting('reveille.tenant', true) in ('*', tenant_id));
-- What holds for everybody is everybody's to read, and nobody's to write.
create policy usual on tenant_quotas for select using (tenant_id = '*');
alter table tenant_usage enable row level security;
alter table tenant_usage force row level security;
create policy tenant on tenant_usage using (current_setting('reveille.tenant', true) in ('*', tenant_id));
alter table event_task_counts enable row level security;
alter table event_task_counts force row level security;
create policy tenant on event_task_counts using (current_setting('reveille.tenant', true) in ('*', tenant_id));
alter table quota_minutes enable row level security;
alter table quota_minutes force row level security;
create policy tenant on quota_minutes using (current_setting('reveille.tenant', true) in ('*', tenant_id));
