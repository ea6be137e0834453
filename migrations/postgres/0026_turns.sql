-- Due tasks, and runs that wait for somebody, are looked for by tenant where more are due than a batch has: what is due of
-- one tenant never hides what is due of another.
-- Same number, tables and columns as migrations/sqlite/0026_turns.sql.

-- Row-level security would hide the tasks from whoever owns them.
select set_config('reveille.tenant', '*', true);
update due set tenant_id = t.tenant_id from tasks t where t.id = due.task_id and due.tenant_id = '';
create index due_turns on due (tenant_id, next_at) where kind = 'schedule' and next_at is not null;
create index parked_for_people on parked (tenant_id, wake_at) where why = 'approval';
create index parked_for_completion on parked (tenant_id, wake_at) where why = 'completion';
