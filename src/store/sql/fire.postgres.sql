-- One statement to fire: due rows, which the caller has locked, move on; runs are recorded (once per fire key) and enter
-- the queue: started, or claimed as far as the instance has room, or ready. The last row says how many moved and were
-- recorded: where that is fewer than were asked for, the caller takes back what it must.
-- No step is joined with another, but for each row of `due` with its new place: a plan that knows nothing of the numbers
-- would compare each with each.
with r as materialized (
    select *
      from unnest($9::uuid[], $10::uuid[], $11::text[], $12::text[], $13::text[], $14::timestamptz[], $15::jsonb[],
                  $16::bigint[], $17::timestamptz[], $18::timestamptz[], $19::text[], $20::boolean[], $21::timestamptz[])
           as r (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, missed, epoch, run_at, lease_until, overlap,
                 goes, deadline_at)
), moved as (
    update due d
       set next_at = m.next_at, nominal_at = m.nominal_at,
           fire_count = d.fire_count + m.fires, run_count = d.run_count + m.fires
      from unnest($1::uuid[], $2::bigint[], $3::timestamptz[], $4::timestamptz[], $5::bigint[])
           as m (task_id, epoch, next_at, nominal_at, fires)
     where d.task_id = any (array[m.task_id]) and d.epoch = m.epoch
    returning 1
), made as (
    insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, missed, created_at, attempt,
                      started_at)
    select id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, case when goes then 'running' else 'queued' end,
           missed, $6, goes::int, case when goes then $6 end
      from r
    on conflict (task_id, fire_key) do nothing
    returning 1
), queued as (
    insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state, lease_token, lease_until, worker, overlap,
                       deadline_at)
    select id, task_id, tenant_id, epoch, run_at, 0,
           case when goes then 'started' when lease_until is null then 'ready' else 'claimed' end,
           case when lease_until is null then 0 else nextval('lease_tokens') end,
           case when goes then $8 else lease_until end,
           case when lease_until is not null then $7::uuid end, overlap, deadline_at
      from r
    returning run_id, lease_token
)
select run_id, lease_token, 0::bigint from queued
union all
select null, (select count(*) from moved), (select count(*) from made)
