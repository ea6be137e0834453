-- Due tasks, and runs that wait for somebody, are looked for by tenant where more are due than a batch has: what is due of
-- one tenant never hides what is due of another.
-- Same number, tables and columns as migrations/postgres/0026_turns.sql.

update due
   set tenant_id = coalesce((select t.tenant_id from tasks t where t.id = due.task_id), tenant_id)
 where tenant_id = '';
create index due_turns on due (tenant_id, next_at) where kind = 'schedule' and next_at is not null;
create index parked_for_people on parked (tenant_id, wake_at) where why = 'approval';
create index parked_for_completion on parked (tenant_id, wake_at) where why = 'completion';
