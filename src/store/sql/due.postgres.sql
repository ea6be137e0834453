-- The earliest are found by the index alone, before their tasks are read: there may be any number that are due. And a few
-- of those that are due after all of these, the latest first: who is due in time must not stand behind who is late already.
-- No row is locked: what a tenant wrote is computed before anything is. `due_as_read` sees that they are still as they were.
-- Of a long specification the trigger alone is read, so that the rows are bounded in bytes: 550 of 64 KiB.
with earliest as materialized (
    select task_id, next_at, nominal_at, epoch, run_count, fired
      from due
     where kind = 'schedule' and next_at <= $1
     order by next_at
     limit $2 offset $4
), latest as materialized (
    select task_id, next_at, nominal_at, epoch, run_count, fired
      from due
     where kind = 'schedule' and next_at <= $1 and next_at > (select max(next_at) from earliest)
     order by next_at desc
     limit $3
)
select t.id, t.tenant_id, t.key, t.name, case when w.bytes <= 16384 then t.spec end as spec, t.status, t.status_reason,
       t.epoch, t.version, t.anchor_at, t.active_since, d.next_at, d.nominal_at, d.run_count, d.fired, t.created_at,
       t.updated_at, t.trigger_type,
       case when w.bytes > 16384 and octet_length((t.spec -> 'trigger')::text) <= 65536 then t.spec -> 'trigger' end as trigger,
       (t.spec ->> 'max_runs')::bigint as max_runs, coalesce((t.spec ->> 'timeout_seconds')::bigint, 600) as timeout_seconds
  from (select * from earliest union all select * from latest) d
  join tasks t on t.id = any (array[d.task_id]) and t.epoch = d.epoch
 cross join lateral (select octet_length(t.spec::text) as bytes offset 0) w
 order by d.next_at
