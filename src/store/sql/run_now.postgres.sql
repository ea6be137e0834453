-- A run that somebody asked for: recorded, counted, and in the queue; started with it if a worker ($7) is there to
-- execute it and the task's slot is free. Asked for once more, it changes nothing. It is confined to who asks ($2) before
-- any of it is read, so that row-level security stands behind it as behind every write for a caller.
with confined as materialized (
    select set_config('reveille.tenant', coalesce($2, '*'), true) as tenant
), d as materialized (
    select d.task_id, d.epoch, d.next_at, d.nominal_at, d.run_count, d.fired
      from confined cross join due d
     where d.task_id = $1
       for update of d
), t as materialized (
    select t.*, coalesce(t.spec -> 'trigger' ->> 'overlap', 'skip') as overlap,
           coalesce(substring(t.spec ->> 'timeout_seconds' from '^[0-9]{1,9}$')::bigint, 600) as timeout_seconds,
           $7::uuid is not null and not exists (select from runs r where r.id = $3) as may_start
      from d
     cross join tasks t
     where t.id = $1 and ($2::text is null or t.tenant_id = $2)
), slotted as (
    insert into slots (task_id, run_id)
    select id, $3 from t where may_start and overlap <> 'allow'
    on conflict (task_id) do nothing
    returning run_id
), made as (
    insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, input, created_at,
                      attempt, started_at, requested_by)
    select $3, t.id, t.tenant_id, $4, t.trigger_type, $5, case when starts.yes then 'running' else 'queued' end, $6, $5,
           case when starts.yes then 1 else 0 end, case when starts.yes then $5 end, $10
      from t
     cross join lateral (select may_start and (overlap = 'allow' or exists (select from slotted)) as yes) starts
    on conflict (task_id, fire_key) do nothing
    returning id, task_id, tenant_id, state
), queued as (
    insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state, lease_token, lease_until, worker,
                       deadline_at)
    select made.id, made.task_id, made.tenant_id, d.epoch, $5, $9,
           case when made.state = 'running' then 'started' else 'ready' end,
           case when made.state = 'running' then nextval('lease_tokens') else 0 end,
           case when made.state = 'running' then $8::timestamptz end,
           case when made.state = 'running' then $7::uuid end,
           case when made.state = 'running' then $5 + t.timeout_seconds * interval '1 second' end
      from made, d, t
    returning run_id, lease_token, deadline_at
), counted as (
    update due set run_count = run_count + 1 where task_id = $1 and exists (select from made)
)
select t.id, t.tenant_id, t.key, t.name, t.spec, t.status, t.status_reason, t.epoch, t.version, t.anchor_at, t.active_since,
       d.next_at, d.nominal_at, d.run_count, d.fired, t.created_at, t.updated_at, q.lease_token, q.deadline_at,
       case when q.deadline_at is not null
            then (select body from recipients p where p.tenant_id = t.tenant_id) end as recipient
  from t
  join d on d.task_id = t.id
  left join queued q on true
