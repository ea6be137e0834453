-- As on Postgres, of a run that does not start with its record, by several statements that go to the connection's
-- thread together: on the way there and back is most of what a statement costs. What follows the run's record is done
-- where the statement before changed a row (`changes()`), so what is asked for once more changes nothing.
-- Answers a row if there is the task.
insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, input, created_at, requested_by,
                  origin)
select $3, t.id, t.tenant_id, $4, t.trigger_type, $5, 'queued', $6, $5, $7, 'request'
  from tasks t
 where t.id = $1 and ($2 is null or t.tenant_id = $2)
on conflict (task_id, fire_key) do nothing;

insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state)
select r.id, r.task_id, r.tenant_id, d.epoch, $5, 1, 'ready'
  from runs r
  join due d on d.task_id = r.task_id
 where r.id = $3 and changes() = 1;

update due set run_count = run_count + 1 where task_id = $1 and changes() = 1;

select $3 as run_id, null as tenant_id, '' as trigger_type, null as lease_token, null as deadline_at,
       null as task_version, null as recipient, false as is_locked
  from tasks t
  join due d on d.task_id = t.id
 where t.id = $1 and ($2 is null or t.tenant_id = $2)
