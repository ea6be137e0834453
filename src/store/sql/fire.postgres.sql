-- One statement to fire: due rows move on (only from the epoch that was read), runs are recorded (once per fire key),
-- and those to be executed enter the queue: started if they are due and have their task's slot, else claimed, as far as
-- the instance has room. A slot that a run took whose fire has its record already is given back by the caller.
with moved as (
    update due d
       set next_at = m.next_at, nominal_at = m.nominal_at,
           fired = d.fired + m.fired, run_count = d.run_count + m.fired
      from unnest($1::uuid[], $2::bigint[], $3::timestamptz[], $4::timestamptz[], $5::bigint[])
           as m (task_id, epoch, next_at, nominal_at, fired)
     where d.task_id = m.task_id and d.epoch = m.epoch
    returning d.task_id
), q as materialized (
    select q.*
      from unnest($16::uuid[], $17::bigint[], $18::timestamptz[], $19::timestamptz[], $21::text[], $22::uuid[],
                  $23::boolean[], $24::boolean[], $25::bigint[]) with ordinality
           as q (run_id, epoch, run_at, lease_until, overlap, task_id, starts, needs_slot, timeout_seconds, place)
      join moved using (task_id)
), slotted as (
    insert into slots (task_id, run_id)
    select task_id, run_id from q where starts and needs_slot order by task_id, place
    on conflict (task_id) do nothing
    returning run_id
), going as (
    select run_id from slotted
    union all
    select run_id from q where starts and not needs_slot
), made as (
    insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, reason, missed,
                      created_at, finished_at, attempt, started_at)
    select r.id, r.task_id, r.tenant_id, r.fire_key, r.trigger_type, r.scheduled_for,
           case when g.run_id is null then r.state else 'running' end, r.reason, r.missed,
           $15, case when r.state = 'skipped' then $15 end,
           case when g.run_id is null then 0 else 1 end, case when g.run_id is not null then $15 end
      from unnest($6::uuid[], $7::uuid[], $8::text[], $9::text[], $10::text[], $11::timestamptz[], $12::text[],
                  $13::text[], $14::jsonb[])
           as r (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, reason, missed)
      join moved using (task_id)
      left join going g on g.run_id = r.id
    on conflict (task_id, fire_key) do nothing
    returning id, task_id, tenant_id, state
), queued as (
    insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state, lease_token, lease_until, worker,
                       overlap, deadline_at)
    select made.id, made.task_id, made.tenant_id, q.epoch, q.run_at, 0,
           case when made.state = 'running' then 'started' when q.lease_until is null then 'ready' else 'claimed' end,
           case when q.lease_until is null then 0 else nextval('lease_tokens') end,
           case when made.state = 'running' then $26 else q.lease_until end,
           case when q.lease_until is not null then $20::uuid end, q.overlap,
           case when made.state = 'running' then $15 + q.timeout_seconds * interval '1 second' end
      from q
      join made on made.id = q.run_id
    returning run_id, run_at, lease_token, lease_until, deadline_at
)
select run_id, run_at, lease_token, lease_until, true as queued, deadline_at from queued
union all
select id, $15, 0, null, false, null from made where state = 'skipped'
