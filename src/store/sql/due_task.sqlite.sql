select t.id, t.tenant_id, t.key, t.name, t.spec, t.status, t.status_reason, t.epoch, t.version, t.anchor_at, t.active_since,
       d.next_at, d.nominal_at, d.run_count, d.fired, t.created_at, t.updated_at, t.trigger_type,
       t.spec ->> 'max_runs' as max_runs,
       coalesce(t.spec ->> 'timeout_seconds', 600) as timeout_seconds
  from due d
  join tasks t on t.id = d.task_id
 where d.kind = 'schedule' and d.next_at <= $1 and d.task_id = $2
