-- Runs that somebody asked for: recorded, counted, and ready in the queue, or started where they may ($6) and have their
-- task's slot. What is asked for once more changes nothing. All of them are confined to who asks ($1) before any of it is
-- read, so that row-level security stands behind it as behind every write for a caller: what is read by the key of a row
-- before it can't be read earlier.
-- As in `fire_events`, a run overtakes no older one of its task that is yet to start, a slot is taken before its run is
-- recorded, and where a task was given runs since the statement began, the run is ready.
-- A task that is locked by somebody else is waited for, or passed over ("skip locked"), and then nothing of it is written.
-- Answers a row for each whose task is there, or locked; of those that started with the lease, the time limit, the version of the
-- task and the recipient. Other instances are told with the commit where $11 says so.
with confined as materialized (
    select set_config('reveille.tenant', coalesce($1, '*'), true) as tenant
), items as materialized (
    select i.*, 'm:' || i.run_id as fire_key
      from confined
     cross join unnest($2::uuid[], $3::uuid[], $4::jsonb[], $5::text[], $6::boolean[], $7::timestamptz[])
                with ordinality as i (task_id, run_id, input, requested_by, may_start, at, place)
), locked as materialized (
    select d.*
      from (select distinct task_id from items order by task_id) l
     cross join lateral (select task_id, epoch, run_count from due where task_id = any (array[l.task_id]) for update {wait}) d
), overtaken as materialized (
    select l.task_id
      from locked l
     where (select d.run_count from due d where d.task_id = any (array[l.task_id])) is distinct from l.run_count
), asked as materialized (
    select i.*, l.epoch, t.tenant_id, t.trigger_type, t.overlap, t.timeout_seconds, t.version,
           case when i.may_start then nextval('lease_tokens') else 0 end as lease_token,
           (select true from runs r
             where r.task_id = i.task_id and r.fire_key between i.fire_key and i.fire_key
             order by r.fire_key limit 1) is not null as is_known
      from items i
      join locked l on l.task_id = i.task_id
     cross join lateral (select tenant_id, trigger_type, version,
                                coalesce(spec -> 'trigger' ->> 'overlap', 'skip') as overlap,
                                coalesce(substring(spec ->> 'timeout_seconds' from '^[0-9]{1,9}$')::bigint, 600)
                                    as timeout_seconds
                           from tasks
                          where id = any (array[i.task_id])
                         offset 0) t
     where $1::text is null or t.tenant_id = $1
), slotted as (
    insert into slots (task_id, run_id)
    select a.task_id, a.run_id
      from asked a
     where a.may_start and not a.is_known and a.overlap <> 'allow'
       and a.task_id not in (select task_id from overtaken)
       and (select true from queue q where q.task_id = a.task_id and q.state <> 'started' limit 1) is null
       and (select true from parked p where p.task_id = a.task_id and p.reason = 'overlap' limit 1) is null
       -- one that is being freed is not waited for
       and (select true from slots s where s.task_id = a.task_id limit 1) is null
     order by a.task_id, a.place
    on conflict (task_id) do nothing
    returning run_id
), going as materialized (
    select a.run_id, $8::timestamptz + a.timeout_seconds * interval '1 second' as deadline_at
      from asked a
     where a.may_start and not a.is_known and (a.overlap = 'allow' or a.run_id in (select run_id from slotted))
), made as (
    insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, input, created_at,
                      requested_by, origin, attempt, started_at)
    select a.run_id, a.task_id, a.tenant_id, a.fire_key, a.trigger_type, a.at,
           case when g.goes then 'running' else 'queued' end, a.input, a.at, a.requested_by, 'request', g.goes::int,
           case when g.goes then $8::timestamptz end
      from asked a
     cross join lateral (select a.run_id in (select run_id from going) as goes) g
     where a.run_id not in (select run_id from slotted)
    on conflict (task_id, fire_key) do nothing
    returning id, task_id
), made_with_slot as (
    insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, input, created_at,
                      requested_by, origin, attempt, started_at)
    select a.run_id, a.task_id, a.tenant_id, a.fire_key, a.trigger_type, a.at, 'running', a.input, a.at,
           a.requested_by, 'request', 1, $8::timestamptz
      from asked a
     where a.run_id in (select run_id from slotted)
    returning id, task_id
), recorded as materialized (
    select * from made union all select * from made_with_slot
), counted as (
    update due d
       set run_count = d.run_count + c.runs
      from (select task_id, count(*) as runs from recorded group by task_id) c
     where d.task_id = any (array[c.task_id])
), queued as (
    insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state, lease_token, lease_until, worker,
                       deadline_at)
    select a.run_id, a.task_id, a.tenant_id, a.epoch, a.at, 1, case when g.goes then 'started' else 'ready' end,
           case when g.goes then a.lease_token else 0 end, case when g.goes then $9::timestamptz end,
           case when g.goes then $10::uuid end,
           case when g.goes then $8::timestamptz + a.timeout_seconds * interval '1 second' end
      from asked a
     cross join lateral (select a.run_id in (select run_id from going) as goes) g
     where a.run_id in (select id from recorded)
    returning run_id
)
select a.run_id, a.tenant_id, a.trigger_type, case when g.run_id is not null then a.lease_token end as lease_token,
       g.deadline_at, a.version as task_version,
       case when g.run_id is not null
            then (select r.body::text from recipients r where r.tenant_id = any (array[a.tenant_id])) end as recipient,
       false as is_locked
  from asked a
  left join going g on g.run_id = a.run_id and g.run_id in (select run_id from queued)
union all
select i.run_id, null, '', null, null, null, null, true
  from items i
 where i.task_id not in (select task_id from locked)
   and (select true from due d where d.task_id = any (array[i.task_id])) is not null
union all
select null, cast(pg_notify('reveille_' || current_schema(), $11) as text), '', null, null, null, null, false
 where $11::text is not null
