-- A run that somebody asked for: recorded, counted, and ready in the queue. Asked for once more, it changes nothing. It is
-- confined to who asks ($2) before any of it is read, so that row-level security stands behind it as behind every write
-- for a caller. Answers whether there is such a task. Other instances are told of it with the commit where $8 says so.
with confined as materialized (
    select set_config('reveille.tenant', coalesce($2, '*'), true) as tenant
), d as materialized (
    select d.task_id, d.epoch
      from confined cross join due d
     where d.task_id = $1
       for update of d
), t as materialized (
    select t.id, t.tenant_id, t.trigger_type, d.epoch
      from d
     cross join tasks t
     where t.id = $1 and ($2::text is null or t.tenant_id = $2)
), made as (
    insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, input, created_at,
                      requested_by, origin)
    select $3, id, tenant_id, $4, trigger_type, $5, 'queued', $6, $5, $7, 'request'
      from t
    on conflict (task_id, fire_key) do nothing
    returning id
), queued as (
    insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state)
    select made.id, t.id, t.tenant_id, t.epoch, $5, 1, 'ready'
      from made, t
), counted as (
    update due set run_count = run_count + 1 where task_id = $1 and exists (select from made)
)
select (select count(*) from t),
       case when $8::text is not null then cast(pg_notify('reveille_' || current_schema(), $8) as text) end
