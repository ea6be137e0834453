-- Tasks that are paused or disabled are listed among many that fire.
-- Same number, tables and columns as migrations/sqlite/0068_halted_tasks.sql.

create index tasks_halted on tasks (tenant_id, id) where status in ('paused', 'disabled');
create index tasks_halted_of_all on tasks (id) where status in ('paused', 'disabled');
