select d.task_id, d.nominal_at, d.epoch, d.fired, t.tenant_id, t.spec -> 'trigger' as trigger,
       t.trigger_type, t.spec ->> 'max_runs' as max_runs,
       coalesce(t.spec ->> 'timeout_seconds', 600) as timeout_seconds, t.anchor_at, t.active_since
  from due d
  join tasks t on t.id = d.task_id
 where d.kind = 'schedule' and d.next_at <= $1
 order by d.next_at
 limit $2
