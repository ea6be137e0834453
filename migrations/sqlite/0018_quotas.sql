-- Quotas: what a tenant may have, what it has, and what it did in this minute.
-- Same number, tables and columns as migrations/postgres/0018_quotas.sql.

-- The row of '*' is what `[quotas]` says, written by each instance when it starts. The others are overrides; a null is
-- as '*' has it.
create table tenant_quotas (
    tenant_id               text primary key,
    tasks                   integer,
    event_tasks_per_source  integer,
    events_per_minute       integer,
    fires_per_minute        integer,
    polls                   integer,
    streams                 integer,
    updated_at              text not null
) without rowid;
insert into tenant_quotas (tenant_id, tasks, event_tasks_per_source, events_per_minute, fires_per_minute, polls,
                           streams, updated_at)
values ('*', 100000, 1000, 60000, 60000, 1000, 50, '1970-01-01T00:00:00+00:00');

-- Counted by triggers, so that no statement that writes tasks can leave the counting out and none needs a round trip
-- more. Of several triggers of one table nobody knows which comes first: what counts is looked at in the same one.
create table tenant_usage (
    tenant_id   text primary key,
    tasks       integer not null,
    polls       integer not null
) without rowid;
create table event_task_counts (
    tenant_id   text not null,
    source      text not null,
    tasks       integer not null,
    primary key (tenant_id, source)
) without rowid;
create index event_task_counts_fullest on event_task_counts (tenant_id, tasks);

-- What was done in the minute that is told, over all instances, as far as they have asked. `granted` is what the last one
-- that asked was given.
create table quota_minutes (
    tenant_id   text not null,
    quota       text not null,
    minute      integer not null,
    used        integer not null,
    granted     integer not null,
    primary key (tenant_id, quota)
) without rowid;

insert into tenant_usage (tenant_id, tasks, polls)
select tenant_id, count(*), count(*) filter (where trigger_type = 'condition') from tasks group by tenant_id;
insert into event_task_counts (tenant_id, source, tasks)
select tenant_id, coalesce(spec ->> '$.trigger.source', ''), count(*) from tasks where trigger_type = 'event' group by 1, 2;

create trigger tasks_made after insert on tasks begin
    insert into tenant_usage (tenant_id, tasks, polls) values (new.tenant_id, 1, new.trigger_type = 'condition')
    on conflict (tenant_id) do update set tasks = tasks + 1, polls = polls + excluded.polls;
    select raise(abort, format('quota_exceeded tasks %d %d %s', coalesce(q.tasks, d.tasks), u.tasks - 1, u.tenant_id))
      from tenant_usage u
      join tenant_quotas d on d.tenant_id = '*'
      left join tenant_quotas q on q.tenant_id = u.tenant_id
     where u.tenant_id = new.tenant_id and u.tasks > coalesce(q.tasks, d.tasks);
    select raise(abort, format('quota_exceeded polls %d %d %s', coalesce(q.polls, d.polls), u.polls - 1, u.tenant_id))
      from tenant_usage u
      join tenant_quotas d on d.tenant_id = '*'
      left join tenant_quotas q on q.tenant_id = u.tenant_id
     where u.tenant_id = new.tenant_id and new.trigger_type = 'condition' and u.polls > coalesce(q.polls, d.polls);
end;

create trigger event_tasks_made after insert on tasks when new.trigger_type = 'event' begin
    insert into event_task_counts (tenant_id, source, tasks)
    values (new.tenant_id, coalesce(new.spec ->> '$.trigger.source', ''), 1)
    on conflict (tenant_id, source) do update set tasks = tasks + 1;
    select raise(abort, format('quota_exceeded event_tasks_per_source %d %d %s',
                               coalesce(q.event_tasks_per_source, d.event_tasks_per_source), c.tasks - 1, c.tenant_id))
      from event_task_counts c
      join tenant_quotas d on d.tenant_id = '*'
      left join tenant_quotas q on q.tenant_id = c.tenant_id
     where c.tenant_id = new.tenant_id and c.source = coalesce(new.spec ->> '$.trigger.source', '')
       and c.tasks > coalesce(q.event_tasks_per_source, d.event_tasks_per_source);
end;

create trigger tasks_gone after delete on tasks begin
    update tenant_usage set tasks = tasks - 1, polls = polls - (old.trigger_type = 'condition')
     where tenant_id = old.tenant_id;
end;

create trigger event_tasks_gone after delete on tasks when old.trigger_type = 'event' begin
    update event_task_counts set tasks = tasks - 1
     where tenant_id = old.tenant_id and source = coalesce(old.spec ->> '$.trigger.source', '');
    delete from event_task_counts
     where tenant_id = old.tenant_id and source = coalesce(old.spec ->> '$.trigger.source', '') and tasks <= 0;
end;

create trigger polls_changed after update of trigger_type on tasks
when (old.trigger_type = 'condition') <> (new.trigger_type = 'condition') begin
    update tenant_usage set polls = polls + (new.trigger_type = 'condition') - (old.trigger_type = 'condition')
     where tenant_id = new.tenant_id;
    select raise(abort, format('quota_exceeded polls %d %d %s', coalesce(q.polls, d.polls), u.polls - 1, u.tenant_id))
      from tenant_usage u
      join tenant_quotas d on d.tenant_id = '*'
      left join tenant_quotas q on q.tenant_id = u.tenant_id
     where u.tenant_id = new.tenant_id and new.trigger_type = 'condition' and u.polls > coalesce(q.polls, d.polls);
end;

create trigger event_tasks_left after update of trigger_type, spec on tasks
when old.trigger_type = 'event'
     and (new.trigger_type <> 'event' or old.spec ->> '$.trigger.source' is not new.spec ->> '$.trigger.source') begin
    update event_task_counts set tasks = tasks - 1
     where tenant_id = old.tenant_id and source = coalesce(old.spec ->> '$.trigger.source', '');
    delete from event_task_counts
     where tenant_id = old.tenant_id and source = coalesce(old.spec ->> '$.trigger.source', '') and tasks <= 0;
end;

create trigger event_tasks_joined after update of trigger_type, spec on tasks
when new.trigger_type = 'event'
     and (old.trigger_type <> 'event' or old.spec ->> '$.trigger.source' is not new.spec ->> '$.trigger.source') begin
    insert into event_task_counts (tenant_id, source, tasks)
    values (new.tenant_id, coalesce(new.spec ->> '$.trigger.source', ''), 1)
    on conflict (tenant_id, source) do update set tasks = tasks + 1;
    select raise(abort, format('quota_exceeded event_tasks_per_source %d %d %s',
                               coalesce(q.event_tasks_per_source, d.event_tasks_per_source), c.tasks - 1, c.tenant_id))
      from event_task_counts c
      join tenant_quotas d on d.tenant_id = '*'
      left join tenant_quotas q on q.tenant_id = c.tenant_id
     where c.tenant_id = new.tenant_id and c.source = coalesce(new.spec ->> '$.trigger.source', '')
       and c.tasks > coalesce(q.event_tasks_per_source, d.event_tasks_per_source);
end;
