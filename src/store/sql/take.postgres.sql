-- Ready runs are leased. Those that are due ($1) start at once, as claims do in `start`: they are not cancelled and have
-- their task's slot, taken now or handed over. Those that fall due soon ($2), or found the slot taken, are claimed.
-- Picked are the most urgent; or, where there are more than can be taken ($6), as many of each tenant: of those
-- that follow the name $7, and then from the first again. Tenants that are halted are passed over. As there is no share for
-- more tenants than there is room for runs, no more are looked for than $8.
-- What has started is answered with its whole run, as this statement leaves it, with the version of its task, and behind all
-- runs once for each tenant with its recipient: so nothing more need be read of tasks that are known.
-- Where so many may be under way at once of each tenant ($10) or of all ($11), what is leased is counted, and each gets
-- what is left to it; takes come one after the other then. Where tenants have numbers of their own ($16), theirs are in the
-- place of $10. What has no limit is null, and nothing is counted.
-- Of the places of an instance, of which so many are free ($15), so many are left to each tenant ($14), and fewer to those
-- that are listed ($12, $13); null: they are nobody's in particular.
with recursive held as materialized (
    select tenant_id, count(*) as runs
      from queue
     where ($10::bigint is not null or $11::bigint is not null or $16) and state <> 'ready'
     group by tenant_id
), room as materialized (
    select greatest(least($3::bigint, $11::bigint - coalesce((select sum(runs)::bigint from held), 0)), 0) as runs
), tenants (tenant_id) as (
    (select tenant_id from queue where $6 and state = 'ready' and tenant_id > $7 order by tenant_id limit 1)
    union all
    select next.tenant_id
      from tenants t
     cross join lateral (select q.tenant_id from queue q
                          where q.state = 'ready' and q.tenant_id > t.tenant_id
                          order by q.tenant_id limit 1) next
), turn as materialized (
    select tenant_id, least(here.most - here.runs, here.places) as left_to_it
      from tenants t
     -- `offset 0`: else the planner writes each of these in each place of its name, and it is computed as often
     cross join lateral (select coalesce(($13::bigint[])[array_position($12::text[], t.tenant_id)], $14::bigint) as places,
                                case when $16
                                    then coalesce((select o.concurrent_runs from tenant_quotas o
                                                    where o.tenant_id = t.tenant_id), $10::bigint)
                                    else $10::bigint end as most,
                                coalesce((select h.runs from held h where h.tenant_id = t.tenant_id), 0) as runs
                         offset 0) here
     where (here.most is null or here.runs < here.most)
       and (here.places is null or here.places > 0)
       and (select h.tenant_id from halts h where h.tenant_id in (t.tenant_id, '*') limit 1) is null
     limit $8
), fair as (
    select each.*
      from turn
     cross join lateral (select run_id, task_id, run_at, overlap, cancel_reason
                           from queue
                          where state = 'ready' and tenant_id between turn.tenant_id and turn.tenant_id and run_at <= $2
                          order by tenant_id, priority desc, run_at
                          limit least((select greatest(least((select runs from room) / greatest(count(*), 1),
                                                             3 * $15::bigint / (3 * count(*) + 1)), 1)
                                         from turn),
                                      turn.left_to_it)
                            for update skip locked) each
     limit (select runs from room)
), urgent as (
    select run_id, task_id, run_at, overlap, cancel_reason
      from queue
     where not $6 and state = 'ready' and run_at <= $2
     order by priority desc, run_at
     limit $3
       for update skip locked
), asked as materialized (
    select q.run_id, q.task_id, q.run_at <= $1 and q.cancel_reason is null as may_start,
           coalesce(q.overlap, t.spec -> 'trigger' ->> 'overlap', 'skip') as overlap,
           coalesce(substring(t.spec ->> 'timeout_seconds' from '^[0-9]{1,9}$')::bigint, 600) as timeout_seconds,
           t.version as task_version
      from (select * from fair union all select * from urgent) q
      left join tasks t on t.id = any (array[q.task_id])
), slotted as (
    insert into slots (task_id, run_id)
    select task_id, run_id from asked where may_start and task_id is not null and overlap <> 'allow'
     order by task_id, run_id
    on conflict (task_id) do nothing
    returning run_id
), going as (
    select a.run_id, a.timeout_seconds, a.task_version, r.started_at is null as is_first
      from asked a
      join runs r on r.id = any (array[a.run_id])
     where a.may_start and (a.task_id is null or a.overlap = 'allow')
        or a.run_id in (select run_id from slotted)
        or (a.may_start and exists (select from slots s where s.task_id = a.task_id and s.run_id = a.run_id))
), running as (
    update runs r
       set state = 'running', attempt = r.attempt + 1, started_at = coalesce(r.started_at, $1)
      from going g
     where r.id = any (array[g.run_id]) and r.state = 'queued'
    returning r.*, greatest(g.timeout_seconds * 1000 - r.execution_ms, 0) as left_ms, g.task_version, g.is_first
), started as (
    update queue q
       set state = 'started', lease_token = nextval('lease_tokens'), lease_until = $4,
           deadline_at = $1 + running.left_ms * interval '1 millisecond', worker = $5
      from running
     where q.run_id = any (array[running.id])
    returning q.run_at, q.lease_token, q.lease_until, q.deadline_at, running.*
), claimed as (
    update queue q
       set state = 'claimed', lease_token = nextval('lease_tokens'),
           lease_until = greatest(q.run_at, $1) + $9 * interval '1 millisecond', deadline_at = null, worker = $5
      from asked a
     where q.run_id = any (array[a.run_id]) and a.run_id not in (select id from running)
    returning q.run_id, q.task_id, q.tenant_id, q.run_at, q.lease_token, q.lease_until, q.deadline_at
)
select id, task_id, tenant_id, run_at, lease_token, lease_until, deadline_at,
       fire_key, trigger_type, origin, scheduled_for, state, reason, blocked_by, attempt, crashes, infra_retries, missed,
       retry_of, event_ids, cause, input, created_at, started_at, finished_at, output, finish, error, turns,
       tool_calls, input_tokens, output_tokens, cost_micros, task_version, null as recipient, is_first
  from started
union all
select run_id, task_id, tenant_id, run_at, lease_token, lease_until, deadline_at,
       null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
       null, null, null, null, null, null, null, null, null, null, false
  from claimed
union all
select null, null, max(tenant_id), null, count(*), null, null,
       null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
       null, null, null, null, null, null, null, null, null, null, false
  from turn where $6
union all
select null, null, r.tenant_id, null, 0, null, null,
       null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
       null, null, null, null, null, null, null, null, null, r.body::text, false
  from (select distinct tenant_id from started) s
  join recipients r on r.tenant_id = any (array[s.tenant_id])
