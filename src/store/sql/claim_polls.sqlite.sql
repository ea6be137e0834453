-- Polls that are due and that nobody is at, or whose claim ran out: who had it is gone. What is read here is claimed by
-- an update in the same transaction; $3 says until when.
select d.task_id, d.epoch, t.tenant_id, t.name, t.spec -> 'trigger' as trigger, t.spec -> 'metadata' as metadata,
       t.spec ->> 'max_runs' as max_runs, coalesce(s.version, 0) as version, coalesce(s.edges, 0) as edges, s.body
  from due d
  join tasks t on t.id = d.task_id
  left join condition_state s on s.task_id = d.task_id
 where d.kind = 'condition' and d.next_at <= $1 and (d.claimed_until is null or d.claimed_until <= $1) and $3 > $1
 order by d.next_at
 limit $2
