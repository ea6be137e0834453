-- The same as on Postgres, by several statements that go to the connection's thread together: on the way there and back is
-- most of what a statement costs. What follows the run's record is done where the statement before changed a row
-- (`changes()`), so what is asked for once more changes nothing; the last one that writes changes one where the run starts.
insert into slots (task_id, run_id)
select t.id, $3
  from tasks t
 where t.id = $1 and ($2 is null or t.tenant_id = $2) and $7 is not null
   and coalesce(t.spec -> 'trigger' ->> 'overlap', 'skip') <> 'allow'
   and not exists (select 1 from runs r where r.task_id = t.id and r.fire_key = $4)
on conflict (task_id) do nothing;

insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, input, created_at, attempt, started_at,
                  requested_by)
select $3, t.id, t.tenant_id, $4, t.trigger_type, $5, case when t.starts then 'running' else 'queued' end, $6, $5,
       case when t.starts then 1 else 0 end, case when t.starts then $5 end, $10
  from (select id, tenant_id, trigger_type,
               $7 is not null and (coalesce(spec -> 'trigger' ->> 'overlap', 'skip') = 'allow'
                                   or exists (select 1 from slots s where s.task_id = tasks.id and s.run_id = $3)) as starts
          from tasks
         where id = $1 and ($2 is null or tenant_id = $2)) t
 where true
on conflict (task_id, fire_key) do nothing;

insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state, lease_token, lease_until, worker, deadline_at)
select r.id, r.task_id, r.tenant_id, d.epoch, $5, $9,
       case when r.state = 'running' then 'started' else 'ready' end,
       case when r.state = 'running' then (select last + 1 from lease_tokens) else 0 end,
       case when r.state = 'running' then $8 end,
       case when r.state = 'running' then $7 end,
       case when r.state = 'running'
            then strftime('%Y-%m-%dT%H:%M:%f', $5,
                          case when t.spec -> 'timeout_seconds' glob '[0-9]*' and t.spec ->> 'timeout_seconds' <= 999999999
                               then t.spec ->> 'timeout_seconds' else 600 end || ' seconds') || '+00:00' end
  from runs r
  join tasks t on t.id = r.task_id
  join due d on d.task_id = r.task_id
 where r.id = $3 and changes() = 1;

update due set run_count = run_count + 1 where task_id = $1 and changes() = 1;

update lease_tokens set last = last + 1
 where changes() = 1 and exists (select 1 from queue q where q.run_id = $3 and q.state = 'started');

-- what starts has its task as it was before, as on Postgres
select t.id, t.tenant_id, t.key, t.name, t.spec, t.status, t.status_reason, t.epoch, t.version, t.anchor_at, t.active_since,
       d.next_at, d.nominal_at, d.run_count - changes() as run_count, d.fired, t.created_at, t.updated_at, q.lease_token, q.deadline_at,
       case when q.run_id is not null
            then (select body from recipients p where p.tenant_id = t.tenant_id) end as recipient
  from tasks t
  join due d on d.task_id = t.id
  left join queue q on q.run_id = $3 and changes() = 1
 where t.id = $1 and ($2 is null or t.tenant_id = $2)
