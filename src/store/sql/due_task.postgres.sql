-- A row that was changed after this statement began is read anew when it is locked, its task is not: the epochs tell.
select t.id, t.tenant_id, t.key, t.name, t.spec, t.status, t.status_reason, t.epoch, t.version, t.anchor_at, t.active_since,
       d.next_at, d.nominal_at, d.run_count, d.fired, t.created_at, t.updated_at, t.trigger_type,
       (t.spec ->> 'max_runs')::bigint as max_runs,
       coalesce((t.spec ->> 'timeout_seconds')::bigint, 600) as timeout_seconds
  from due d
  join tasks t on t.id = d.task_id and t.epoch = d.epoch
 where d.kind = 'schedule' and d.next_at <= $1 and d.task_id = $2
   for update of d
