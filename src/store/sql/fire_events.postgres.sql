-- Runs of events: recorded once per fire key, those to be executed queued (claimed as far as the instance has room),
-- and counted. The due rows of their tasks are locked already.
with made as (
    insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, reason, created_at,
                      finished_at, event_ids, cause)
    select r.id, r.task_id, r.tenant_id, r.fire_key, 'event', $1, r.state, r.reason, $1,
           case when r.state = 'skipped' then $1 end, r.event_ids, r.cause
      from unnest($2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::jsonb[], $9::jsonb[])
           as r (id, task_id, tenant_id, fire_key, state, reason, event_ids, cause)
    on conflict (task_id, fire_key) do nothing
    returning id, task_id, tenant_id, state
), counted as (
    update due d
       set fired = d.fired + c.runs, run_count = d.run_count + c.runs
      from (select task_id, count(*) as runs from made where state = 'queued' group by task_id) c
     where d.task_id = c.task_id
), queued as (
    insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state, lease_token, lease_until, worker)
    select made.id, made.task_id, made.tenant_id, q.epoch, $1, 0,
           case when q.claimed then 'claimed' else 'ready' end,
           case when q.claimed then nextval('lease_tokens') else 0 end,
           case when q.claimed then $10::timestamptz end,
           case when q.claimed then $11::uuid end
      from unnest($12::uuid[], $13::bigint[], $14::boolean[]) as q (run_id, epoch, claimed)
      join made on made.id = q.run_id
    returning run_id, lease_token, state
)
select run_id, lease_token, state from queued
union all
select id, 0, 'skipped' from made where state = 'skipped'
