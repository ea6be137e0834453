-- What waits for a credential is found by what it waits for, and what a run has used by the run.
-- Same number, tables and columns as migrations/postgres/0012_waiting.sql.

create index tasks_waiting on tasks (tenant_id, status_reason) where status = 'paused';
create index credential_uses_of_run on credential_uses (run_id) where run_id is not null;
