-- A claim is started if it still stands (the fence), was not cancelled, and has its task's slot: taken now, or handed
-- over by the run before it. Rows are locked in the order of their ids, as every batch on `queue` does.
-- What this token has started already is answered once more: the answer before may have been lost.
-- What starts is answered as `take` answers it: with its whole run, the version of its task, and behind all runs once for each
-- tenant with its recipient.
with listed as (
    select q.run_id, q.task_id, q.lease_token, q.state, q.cancel_reason, q.overlap
      from unnest($1::uuid[], $2::bigint[]) as l (run_id, lease_token)
      join queue q on q.run_id = any (array[l.run_id]) and q.lease_token = l.lease_token
     order by l.run_id
       for update of q
), asked as materialized (
    select q.run_id, q.task_id, coalesce(q.overlap, t.spec -> 'trigger' ->> 'overlap', 'skip') as overlap,
           coalesce(substring(t.spec ->> 'timeout_seconds' from '^[0-9]{1,9}$')::bigint, 600) as timeout_seconds,
           t.version as task_version
      from listed q
      left join tasks t on t.id = any (array[q.task_id])
     where q.state = 'claimed' and q.cancel_reason is null
), slotted as (
    insert into slots (task_id, run_id)
    select task_id, run_id from asked where task_id is not null and overlap <> 'allow' order by task_id, run_id
    on conflict (task_id) do nothing
    returning run_id
), going as (
    select a.run_id, a.timeout_seconds, a.task_version, r.started_at is null as is_first
      from asked a
      join runs r on r.id = any (array[a.run_id])
     where a.task_id is null or a.overlap = 'allow'
        or a.run_id in (select run_id from slotted)
        or exists (select from slots s where s.task_id = a.task_id and s.run_id = a.run_id)
), running as (
    update runs r
       set state = 'running', attempt = r.attempt + 1, started_at = coalesce(r.started_at, $3)
      from going g
     where r.id = any (array[g.run_id]) and r.state = 'queued'
    returning r.*, greatest(g.timeout_seconds * 1000 - r.execution_ms, 0) as left_ms, g.task_version, g.is_first
), started as (
    update queue q
       set state = 'started', lease_until = $4, deadline_at = $3 + running.left_ms * interval '1 millisecond'
      from running
     where q.run_id = any (array[running.id])
    returning q.lease_token, q.deadline_at, running.*
), again as (
    update queue q
       set lease_until = $4
      from listed
     where q.run_id = any (array[listed.run_id]) and listed.state = 'started'
    returning q.run_id, q.task_id, q.tenant_id, q.lease_token, q.deadline_at
)
select id as run_id, task_id, tenant_id, lease_token, deadline_at, id,
       fire_key, trigger_type, origin, scheduled_for, state, reason, blocked_by, attempt, crashes, infra_retries, missed,
       retry_of, event_ids, cause, input, created_at, started_at, finished_at, output, finish, error, turns, tool_calls,
       input_tokens, output_tokens, cost_micros, task_version, null as recipient, is_first
  from started
union all
select run_id, task_id, tenant_id, lease_token, deadline_at, null,
       null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
       null, null, null, null, null, null, null, null, null, null, false
  from again
union all
select null, null, r.tenant_id, 0, null, null,
       null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
       null, null, null, null, null, null, null, null, null, r.body::text, false
  from (select tenant_id from started union select tenant_id from again) s
  join recipients r on r.tenant_id = any (array[s.tenant_id])
