-- Polls that are due are looked for by tenant, so that what is due of one never hides what is due of another.
-- Same number, tables and columns as migrations/postgres/0020_polls.sql.

-- Empty where an instance of an older release made the row. Its next poll writes the tenant.
alter table due add column tenant_id text not null default '';
update due set tenant_id = (select t.tenant_id from tasks t where t.id = due.task_id) where kind = 'condition';
create index due_polls on due (tenant_id, next_at) where kind = 'condition' and next_at is not null;
