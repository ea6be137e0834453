with earliest as materialized (
    select * from due where kind = 'schedule' and next_at <= $1 order by next_at limit $2 offset $4
), latest as materialized (
    select *
      from due
     where kind = 'schedule' and next_at <= $1 and next_at > (select max(next_at) from earliest)
     order by next_at desc
     limit $3
), turn as materialized (
    select d.*
      from json_each($5) t
     cross join due d
     where d.task_id in (select x.task_id from due x indexed by due_of_tenant
                          where x.kind = 'schedule' and x.tenant_id = t.value and x.next_at <= $1
                          order by x.next_at limit $6)
       and d.task_id not in (select task_id from earliest union all select task_id from latest)
)
select t.id, t.tenant_id, t.key, t.name, case when $7 and octet_length(t.spec) <= 16384 then t.spec end as spec, t.status,
       t.status_reason, t.epoch, t.version, t.anchor_at, t.active_since, d.next_at, d.nominal_at, d.run_count, d.fire_count,
       t.created_at, t.updated_at, t.trigger_type,
       case when $7 and octet_length(t.spec) > 16384 and json_valid(t.spec) and octet_length(t.spec -> 'trigger') <= 65536
            then t.spec -> 'trigger' end as "trigger",
       case when $7 and json_valid(t.spec) then t.spec -> 'max_runs' end as max_runs,
       case when $7 and json_valid(t.spec) then t.spec -> 'timeout_seconds' end as timeout_seconds
  from (select * from earliest union all select * from latest union all select * from turn) d
  join tasks t on t.id = d.task_id and t.epoch = d.epoch
 order by d.next_at
