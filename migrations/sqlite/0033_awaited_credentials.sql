-- The credential for want of which a task is paused, as data: it was read out of the reason for people.
-- Same number, tables and columns as migrations/postgres/0033_awaited_credentials.sql.

-- Of a task that is paused until this credential is saved; null for every other.
alter table tasks add column awaited_service text;
alter table tasks add column awaited_account text;

update tasks
   set awaited_service = case instr(status_reason, '/')
                              when 0 then substr(status_reason, 12)
                              else substr(status_reason, 12, instr(status_reason, '/') - 12) end,
       awaited_account = case instr(status_reason, '/')
                              when 0 then 'primary'
                              else substr(status_reason, instr(status_reason, '/') + 1) end
 where status = 'paused' and status_reason glob 'credential:?*' and status_reason not glob '*[ ]*'
   and status_reason not glob '*/*/*' and status_reason not glob 'credential:/*' and status_reason not glob '*/';

drop index tasks_waiting;
create index tasks_awaiting_credential on tasks (tenant_id, awaited_service, awaited_account)
    where awaited_service is not null;
