-- Stable keys: the name of a task that its owner chose, for files that are imported or applied again.
-- Same number, tables and columns as migrations/sqlite/0010_task_keys.sql.

alter table tasks add column key text;
create unique index tasks_of_key on tasks (tenant_id, key) where key is not null;
