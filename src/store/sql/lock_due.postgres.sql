-- Locks the due rows of these tasks, but for those that somebody else holds, and answers how they are now. A row that was
-- changed after this statement began is read anew when it is locked, its task is not: the epoch tells.
select d.task_id, d.epoch, d.next_at, d.nominal_at, d.fire_count, t.version
  from due d
  join tasks t on t.id = any (array[d.task_id])
 where d.task_id = any ($1)
 order by d.task_id
   for update of d skip locked
