-- Runs of events: recorded once per fire key, those to be executed queued (started, or claimed as far as the instance has
-- room), and counted, if these tasks ($17) have these epochs ($18) and these shards of the index ($19) these versions ($20).
-- Then events that windows have had are left out. Without tasks, all is looked at and locked already.
-- Those to be executed stand first, each with its epoch ($11). Of them some may start ($13): as in `start`, they need their
-- task's slot unless it allows overlap, and overtake no older run of the task that is yet to start. That is looked up as it was
-- before the locks were waited for: where a task was given runs meanwhile (its `run_count` is another one by now), its run
-- goes by its claim. A slot is taken before
-- its run is recorded, so a run that has one is recorded apart: if somebody else has recorded the fire meanwhile, its key
-- refuses the whole statement, and no slot is left behind.
-- What starts is answered with its time limit and the version of its task, and behind all rows once for each tenant with its
-- recipient. Which runs are new is asked by `in`, never joined, see `fire`.
with locked as materialized (
    select d.task_id, d.epoch, d.run_count
      from unnest($17::uuid[]) as t (task_id)
      join due d on d.task_id = any (array[t.task_id])
     order by t.task_id
       for update of d
), fresh as materialized (
    select (select count(*) from unnest($17::uuid[], $18::bigint[]) as t (task_id, epoch)
                            join locked using (task_id, epoch)) = cardinality($17)
           and not exists (select from unnest($19::int[], $20::bigint[]) as s (shard, version)
                             left join event_index i using (shard) where coalesce(i.version, 0) <> s.version) as yes
), fit as materialized (
    select r.id
      from unnest($2::uuid[], $3::uuid[], $10::text[]) as r (id, task_id, event_key)
     where (select yes from fresh)
       and (cardinality($17) = 0
            or not exists (select from window_events w
                            where w.task_id = any (array[r.task_id]) and w.event_key = r.event_key))
), asked as materialized (
    select a.id, a.task_id, a.tenant_id, a.fire_key, a.epoch, a.claimed, a.place,
           case when a.claimed then nextval('lease_tokens') else 0 end as lease_token,
           coalesce(t.spec -> 'trigger' ->> 'overlap', 'skip') as overlap,
           coalesce(substring(t.spec ->> 'timeout_seconds' from '^[0-9]{1,9}$')::bigint, 600) as timeout_seconds,
           t.version as task_version
      from unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $11::bigint[], $12::boolean[], $13::boolean[])
           with ordinality as a (id, task_id, tenant_id, fire_key, epoch, claimed, may_start, place)
      left join tasks t on t.id = any (array[case when a.may_start then a.task_id end])
     where a.epoch is not null and (a.id in (select id from fit) or $1 is null)
), overtaken as materialized (
    select l.task_id
      from locked l
     where (select d.run_count from due d where d.task_id = any (array[l.task_id])) is distinct from l.run_count
), slotted as (
    insert into slots (task_id, run_id)
    select a.task_id, a.id
      from asked a
     where a.task_version is not null and a.overlap <> 'allow'
       and a.task_id not in (select task_id from overtaken)
       and (select true from runs r
             where r.task_id = a.task_id and r.fire_key between a.fire_key and a.fire_key
             order by r.fire_key limit 1) is null
       and (select true from queue q where q.task_id = a.task_id and q.state <> 'started' limit 1) is null
     order by a.task_id, a.place
    on conflict (task_id) do nothing
    returning run_id
), going as materialized (
    select a.id, a.tenant_id, a.lease_token, a.task_version,
           $1::timestamptz + a.timeout_seconds * interval '1 second' as deadline_at
      from asked a
     where a.task_version is not null and (a.overlap = 'allow' or a.id in (select run_id from slotted))
), made as (
    insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, reason, created_at,
                      finished_at, event_ids, cause, attempt, started_at)
    select r.id, r.task_id, r.tenant_id, r.fire_key, 'event', $1, case when g.goes then 'running' else r.state end,
           r.reason, $1, case when r.state = 'skipped' then $1 end, r.event_ids, r.cause, g.goes::int,
           case when g.goes then $1 end
      from unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::jsonb[], $9::jsonb[])
           as r (id, task_id, tenant_id, fire_key, state, reason, event_ids, cause)
     cross join lateral (select r.id in (select id from going) as goes) g
     where (r.id in (select id from fit) or $1 is null) and r.id not in (select run_id from slotted)
    on conflict (task_id, fire_key) do nothing
    returning id, task_id, state
), made_with_slot as (
    insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at, event_ids, cause,
                      attempt, started_at)
    select r.id, r.task_id, r.tenant_id, r.fire_key, 'event', $1, 'running', $1, r.event_ids, r.cause, 1, $1
      from unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $8::jsonb[], $9::jsonb[])
           as r (id, task_id, tenant_id, fire_key, event_ids, cause)
     where exists (select from slotted) and (r.id in (select run_id from slotted) or $1 is null)
    returning id, task_id, state
), recorded as materialized (
    select * from made union all select * from made_with_slot
), counted as (
    update due d
       set fire_count = d.fire_count + c.runs, run_count = d.run_count + c.runs
      from (select task_id, count(*) as runs from recorded where state <> 'skipped' group by task_id) c
     where d.task_id = any (array[c.task_id])
), queued as (
    insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state, lease_token, lease_until, worker,
                       deadline_at)
    select a.id, a.task_id, a.tenant_id, a.epoch, $1, 0,
           case when g.goes then 'started' when a.claimed then 'claimed' else 'ready' end, a.lease_token,
           case when g.goes then $16::timestamptz when a.claimed then $14::timestamptz end,
           case when a.claimed then $15::uuid end,
           case when g.goes then $1::timestamptz + a.timeout_seconds * interval '1 second' end
      from asked a
     cross join lateral (select a.id in (select id from going) as goes) g
     where a.id in (select id from recorded) or $1 is null
    returning run_id, lease_token, state
)
select run_id, lease_token as number, state, null::timestamptz as deadline_at, null::bigint as task_version,
       null as tenant_id, null as recipient
  from queued where state = 'claimed'
union all
select id, lease_token, 'started', deadline_at, task_version, null, null
  from going where id in (select run_id from queued) or $1 is null
union all
select null, count(*), 'ready', null, null, null, null from queued where state = 'ready'
union all
select null, count(*), 'skipped', null, null, null, null from recorded where state = 'skipped'
union all
select null, 0, 'stale', null, null, null, null from fresh where not yes
union all
select null, 0, 'recipient', null, null, r.tenant_id, r.body::text
  from (select distinct tenant_id from going) s
  join recipients r on r.tenant_id = any (array[s.tenant_id])
