-- A row that was changed after this statement began is read anew when it is locked, its task is not: the epochs tell.
select d.task_id, d.nominal_at, d.epoch, d.fired, t.tenant_id, t.spec -> 'trigger' as trigger,
       t.trigger_type, (t.spec ->> 'max_runs')::bigint as max_runs,
       coalesce((t.spec ->> 'timeout_seconds')::bigint, 600) as timeout_seconds, t.anchor_at, t.active_since
  from due d
  join tasks t on t.id = d.task_id and t.epoch = d.epoch
 where d.kind = 'schedule' and d.next_at <= $1 and d.task_id = $2
   for update of d
