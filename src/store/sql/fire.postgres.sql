-- One statement to fire: due rows move on (only from the epoch that was read), runs are recorded (once per fire key),
-- and those to be executed enter the queue: started if they are due and have their task's slot, else claimed, as far as
-- the instance has room. A slot that a run took whose fire has its record already is given back by the caller.
-- What the steps know of one another is asked by `in`, never joined: a set that is hashed costs the same per row however
-- many there are, and a plan that knows nothing of the number would compare each with each. `or $6 is null`, which
-- never holds, keeps it from being made a join.
with moved as (
    update due d
       set next_at = m.next_at, nominal_at = m.nominal_at,
           fired = d.fired + m.fired, run_count = d.run_count + m.fired
      from unnest($1::uuid[], $2::bigint[], $3::timestamptz[], $4::timestamptz[], $5::bigint[])
           as m (task_id, epoch, next_at, nominal_at, fired)
     where d.task_id = m.task_id and d.epoch = m.epoch
    returning d.task_id
), r as materialized (
    select *
      from unnest($9::uuid[], $10::uuid[], $11::text[], $12::text[], $13::text[], $14::timestamptz[], $15::text[],
                  $16::text[], $17::jsonb[], $18::bigint[], $19::timestamptz[], $20::timestamptz[], $21::text[],
                  $22::boolean[], $23::boolean[], $24::bigint[]) with ordinality
           as r (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, reason, missed, epoch, run_at,
                 lease_until, overlap, starts, needs_slot, timeout_seconds, place)
     where task_id in (select task_id from moved) or $6 is null
), slotted as (
    insert into slots (task_id, run_id)
    select task_id, id from r where starts and needs_slot order by task_id, place
    on conflict (task_id) do nothing
    returning run_id
), going as materialized (
    select r.*, starts and (not needs_slot or id in (select run_id from slotted)) as goes from r
), made as (
    insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, reason, missed,
                      created_at, finished_at, attempt, started_at)
    select id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, case when goes then 'running' else state end,
           reason, missed, $6, case when state = 'skipped' then $6 end, goes::int, case when goes then $6 end
      from going
    on conflict (task_id, fire_key) do nothing
    returning id, state
), queued as (
    insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state, lease_token, lease_until, worker,
                       overlap, deadline_at)
    select id, task_id, tenant_id, epoch, run_at, 0,
           case when goes then 'started' when lease_until is null then 'ready' else 'claimed' end,
           case when lease_until is null then 0 else nextval('lease_tokens') end,
           case when goes then $8 else lease_until end,
           case when lease_until is not null then $7::uuid end, overlap,
           case when goes then $6 + timeout_seconds * interval '1 second' end
      from going
     where run_at is not null and (id in (select id from made) or $6 is null)
    returning run_id, run_at, lease_token, lease_until, deadline_at
)
select run_id, run_at, lease_token, lease_until, true as queued, deadline_at from queued
union all
select id, $6, 0, null, false, null from made where state = 'skipped'
