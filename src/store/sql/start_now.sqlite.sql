-- A run that somebody asked for and that may start with its record, as on Postgres, by several statements that go to
-- the connection's thread together. It starts where its task allows overlap, or where it takes the slot of its task,
-- which it does not while an older run of the task is yet to start. Else it is ready. What follows the run's record is
-- done where the statement before changed a row (`changes()`), so what is asked for once more changes nothing.
-- Answers a row if there is the task: with a lease if the run has started now.
insert into slots (task_id, run_id)
select t.id, $3
  from tasks t
 where t.id = $1 and ($2 is null or t.tenant_id = $2) and coalesce({overlap}, 'skip') <> 'allow'
   and not exists (select 1 from runs r where r.task_id = t.id and r.fire_key = $4)
   and not exists (select 1 from queue q where q.task_id = t.id and q.state <> 'started')
   and not exists (select 1 from parked p where p.task_id = t.id and p.reason = 'overlap')
on conflict (task_id) do nothing;

insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, input, created_at, requested_by,
                  origin, attempt, started_at)
select $3, g.id, g.tenant_id, $4, g.trigger_type, $5, iif(g.goes, 'running', 'queued'), $6, $5, $7, 'request', g.goes,
       iif(g.goes, $8, null)
  from (select t.id, t.tenant_id, t.trigger_type,
               coalesce({overlap}, 'skip') = 'allow'
               or exists (select 1 from slots s where s.task_id = t.id and s.run_id = $3) as goes
          from tasks t) g
 where g.id = $1 and ($2 is null or g.tenant_id = $2)
on conflict (task_id, fire_key) do nothing;

-- the first 19 characters of an instant are its seconds, and the rest is their fraction and the zone
insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state, lease_token, lease_until, worker,
                   deadline_at)
select r.id, r.task_id, r.tenant_id, d.epoch, $5, 1, iif(r.attempt = 1, 'started', 'ready'),
       iif(r.attempt = 1, (select last + 1 from lease_tokens), 0), iif(r.attempt = 1, $9, null),
       iif(r.attempt = 1, $10, null),
       iif(r.attempt = 1, (select strftime('%Y-%m-%dT%H:%M:%S', substr($8, 1, 19),
                                           iif(l.seconds < 1000000000, l.seconds, 600) || ' seconds') || substr($8, 20)
                             from (select t.id, {seconds} as seconds from tasks t) l
                            where l.id = r.task_id), null)
  from runs r
  join due d on d.task_id = r.task_id
 where r.id = $3 and changes() = 1;

update due set run_count = run_count + 1 where task_id = $1 and changes() = 1;

update lease_tokens set last = last + 1
 where changes() = 1 and (select state from queue where run_id = $3) = 'started';

select $3 as run_id, t.tenant_id, t.trigger_type, q.lease_token, q.deadline_at,
       case when typeof(t.version) = 'integer' then t.version end as task_version,
       case when q.run_id is not null then (select body from recipients where tenant_id = t.tenant_id) end as recipient,
       false as is_locked
  from tasks t
  join due d on d.task_id = t.id
  left join queue q on q.run_id = $3 and q.state = 'started' and changes() = 1
 where t.id = $1 and ($2 is null or t.tenant_id = $2)
