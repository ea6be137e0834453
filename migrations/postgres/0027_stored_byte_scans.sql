-- Rows from before stored bytes were counted: how far each table has been gone through for them.
-- Same number, tables and columns as migrations/sqlite/0027_stored_byte_scans.sql.

-- One row for each table that is not gone through yet. `position` is the key of the last row that was looked at, as a list
-- of texts; null: none was. A row that is not counted has zero in `stored_bytes`, whatever it holds.
create table stored_byte_scans (
    table_name  text primary key,
    position    text
);

-- A table that is empty has nothing to be counted; what is written from now on is counted as it is written.
select set_config('reveille.tenant', '*', true);
insert into stored_byte_scans (table_name)
select 'tasks' where exists (select 1 from tasks)
union all select 'runs' where exists (select 1 from runs)
union all select 'turns' where exists (select 1 from turns)
union all select 'events' where exists (select 1 from events)
union all select 'window_events' where exists (select 1 from window_events)
union all select 'dead_letters' where exists (select 1 from dead_letters)
union all select 'deliveries' where exists (select 1 from deliveries)
union all select 'credentials' where exists (select 1 from credentials)
union all select 'task_state' where exists (select 1 from task_state)
union all select 'approvals' where exists (select 1 from approvals);
