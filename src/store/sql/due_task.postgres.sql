select t.id, t.tenant_id, t.key, t.name, case when w.bytes <= 16384 then t.spec::text end as spec, t.status, t.status_reason,
       t.epoch, t.version, t.anchor_at, t.active_since, d.next_at, d.nominal_at, d.run_count, d.fire_count, t.created_at,
       t.updated_at, t.trigger_type,
       case when w.bytes > 16384 and octet_length((t.spec -> 'trigger')::text) <= 65536 then (t.spec -> 'trigger')::text end as trigger,
       (t.spec -> 'max_runs')::text as max_runs, (t.spec -> 'timeout_seconds')::text as timeout_seconds
  from due d
  join tasks t on t.id = d.task_id and t.epoch = d.epoch
 cross join lateral (select octet_length(t.spec::text) as bytes offset 0) w
 where d.kind = 'schedule' and d.next_at <= $1 and d.task_id = $2
