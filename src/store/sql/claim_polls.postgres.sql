-- Polls that are due and that nobody is at, or whose claim ran out: who had it is gone.
with picked as (
    select d.task_id
      from due d
     where d.kind = 'condition' and d.next_at <= $1 and (d.claimed_until is null or d.claimed_until <= $1)
     order by d.next_at
     limit $2
       for update skip locked
), claimed as (
    update due d
       set claimed_until = $3
      from picked p
     where d.task_id = p.task_id
    returning d.task_id, d.epoch, d.next_at
)
select c.task_id, c.epoch, t.tenant_id, t.name, t.spec -> 'trigger' as trigger, t.spec -> 'metadata' as metadata,
       (t.spec ->> 'max_runs')::bigint as max_runs, coalesce(s.version, 0) as version, coalesce(s.edges, 0) as edges,
       s.body
  from claimed c
  join tasks t on t.id = c.task_id and t.epoch = c.epoch
  left join condition_state s on s.task_id = c.task_id
 order by c.next_at
