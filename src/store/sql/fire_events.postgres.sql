-- Runs of events: recorded once per fire key, those to be executed queued (claimed as far as the instance has room),
-- and counted, if these tasks ($15) have these epochs ($16) and these shards of the index ($17) these versions ($18).
-- Then events that windows have had are left out. Without tasks, all is looked at and locked already. Which runs are new
-- is asked by `in`, never joined, see `fire`.
with locked as materialized (
    select d.task_id, d.epoch
      from unnest($15::uuid[]) as t (task_id)
      join due d on d.task_id = any (array[t.task_id])
     order by t.task_id
       for update of d
), fresh as materialized (
    select (select count(*) from unnest($15::uuid[], $16::bigint[]) as t (task_id, epoch)
                            join locked using (task_id, epoch)) = cardinality($15)
           and not exists (select from unnest($17::int[], $18::bigint[]) as s (shard, version)
                             left join event_index i using (shard) where coalesce(i.version, 0) <> s.version) as yes
), made as (
    insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, reason, created_at,
                      finished_at, event_ids, cause)
    select r.id, r.task_id, r.tenant_id, r.fire_key, 'event', $1, r.state, r.reason, $1,
           case when r.state = 'skipped' then $1 end, r.event_ids, r.cause
      from unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::jsonb[], $9::jsonb[],
                  $21::text[])
           as r (id, task_id, tenant_id, fire_key, state, reason, event_ids, cause, event_key)
     where (select yes from fresh)
       and (cardinality($15) = 0
            or not exists (select from window_events w
                            where w.task_id = any (array[r.task_id]) and w.event_key = r.event_key))
    on conflict (task_id, fire_key) do nothing
    returning id, task_id, tenant_id, state
), counted as (
    update due d
       set fire_count = d.fire_count + c.runs, run_count = d.run_count + c.runs
      from (select task_id, count(*) as runs from made where state = 'queued' group by task_id) c
     where d.task_id = any (array[c.task_id])
), queued as (
    insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state, lease_token, lease_until, worker)
    select run_id, task_id, tenant_id, epoch, $1, 0,
           case when claimed then 'claimed' else 'ready' end,
           case when claimed then nextval('lease_tokens') else 0 end,
           case when claimed then $10::timestamptz end,
           case when claimed then $11::uuid end
      from unnest($12::uuid[], $13::bigint[], $14::boolean[], $19::uuid[], $20::text[])
           as q (run_id, epoch, claimed, task_id, tenant_id)
     where run_id in (select id from made) or $1 is null
    returning run_id, lease_token, state
)
select run_id, lease_token, state from queued where state = 'claimed'
union all
select null, count(*), 'ready' from queued where state = 'ready'
union all
select null, count(*), 'skipped' from made where state = 'skipped'
union all
select null, 0, 'stale' from fresh where not yes
