-- The earliest are found by the index alone, before their tasks are read: there may be any number that are due. And a few
-- of those that are due after all of these, the latest first: who is due in time must not stand behind who is late already.
-- A row that was changed after this statement began is read anew when it is locked, its task is not: the epochs tell.
with earliest as materialized (
    select task_id, next_at, nominal_at, epoch, run_count, fired
      from due
     where kind = 'schedule' and next_at <= $1
     order by next_at
     limit $2
       for update skip locked
), latest as materialized (
    select task_id, next_at, nominal_at, epoch, run_count, fired
      from due
     where kind = 'schedule' and next_at <= $1 and next_at > (select max(next_at) from earliest)
     order by next_at desc
     limit $3
       for update skip locked
)
select t.id, t.tenant_id, t.key, t.name, t.spec, t.status, t.status_reason, t.epoch, t.version, t.anchor_at, t.active_since,
       d.next_at, d.nominal_at, d.run_count, d.fired, t.created_at, t.updated_at, t.trigger_type,
       (t.spec ->> 'max_runs')::bigint as max_runs, coalesce((t.spec ->> 'timeout_seconds')::bigint, 600) as timeout_seconds
  from (select * from earliest union all select * from latest) d
  join tasks t on t.id = any (array[d.task_id]) and t.epoch = d.epoch
 order by d.next_at
