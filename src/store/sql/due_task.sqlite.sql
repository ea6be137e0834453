select t.id, t.tenant_id, t.key, t.name, case when octet_length(t.spec) <= 16384 then t.spec end as spec, t.status,
       t.status_reason, t.epoch, t.version, t.anchor_at, t.active_since, d.next_at, d.nominal_at, d.run_count, d.fire_count,
       t.created_at, t.updated_at, t.trigger_type,
       case when octet_length(t.spec) > 16384 and json_valid(t.spec) and octet_length(t.spec -> 'trigger') <= 65536
            then t.spec -> 'trigger' end as "trigger",
       case when json_valid(t.spec) then t.spec -> 'max_runs' end as max_runs,
       case when json_valid(t.spec) then t.spec -> 'timeout_seconds' end as timeout_seconds
  from due d
  join tasks t on t.id = d.task_id and t.epoch = d.epoch
 where d.kind = 'schedule' and d.next_at <= $1 and d.task_id = $2
