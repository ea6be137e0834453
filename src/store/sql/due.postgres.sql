-- The earliest are found by the index alone, before their tasks are read: there may be any number that are due. And a few
-- of those that are due after all of these, the latest first: who is due in time must not stand behind who is late already.
-- And the earliest ($6) of each tenant that has its turn ($5): what is due of one must not stand behind all that is due of
-- others. How a tenant is compared leaves no other index.
-- No row is locked: what a tenant wrote is computed before anything is. `lock_due` sees that they are still as they were.
-- Of a long specification the trigger alone is read, so that the rows are bounded in bytes: 600 of 64 KiB. What a task says
-- is read as text: one that can't be read must not keep the others from firing. Where nothing of it is asked for ($7) it is not
-- looked at.
with earliest as materialized (
    select task_id, next_at, nominal_at, epoch, run_count, fire_count
      from due
     where kind = 'schedule' and next_at <= $1
     order by next_at
     limit $2 offset $4
), latest as materialized (
    select task_id, next_at, nominal_at, epoch, run_count, fire_count
      from due
     where kind = 'schedule' and next_at <= $1 and next_at > (select max(next_at) from earliest)
     order by next_at desc
     limit $3
), turn as materialized (
    select d.*
      from jsonb_array_elements_text($5::jsonb) as t (tenant_id)
     cross join lateral (select task_id, next_at, nominal_at, epoch, run_count, fire_count
                           from due
                          where kind = 'schedule' and tenant_id between t.tenant_id and t.tenant_id and next_at <= $1
                          order by tenant_id, next_at
                          limit $6) d
     where d.task_id not in (select task_id from earliest union all select task_id from latest)
)
select t.id, t.tenant_id, t.key, t.name, case when w.bytes <= 16384 then t.spec::text end as spec, t.status, t.status_reason,
       t.epoch, t.version, t.anchor_at, t.active_since, d.next_at, d.nominal_at, d.run_count, d.fire_count, t.created_at,
       t.updated_at, t.trigger_type,
       case when w.bytes > 16384 and octet_length((t.spec -> 'trigger')::text) <= 65536 then (t.spec -> 'trigger')::text end as trigger,
       case when $7 then (t.spec -> 'max_runs')::text end as max_runs,
       case when $7 then (t.spec -> 'timeout_seconds')::text end as timeout_seconds
  from (select * from earliest union all select * from latest union all select * from turn) d
  join tasks t on t.id = any (array[d.task_id]) and t.epoch = d.epoch
 cross join lateral (select case when $7 then octet_length(t.spec::text) end as bytes offset 0) w
 order by d.next_at
