-- The credential for want of which a task is paused, as data: it was read out of the reason for people.
-- Same number, tables and columns as migrations/sqlite/0033_awaited_credentials.sql.

-- Of a task that is paused until this credential is saved; null for every other.
alter table tasks add column awaited_service text;
alter table tasks add column awaited_account text;

-- Row-level security would hide the rows from whoever owns them.
select set_config('reveille.tenant', '*', true);
update tasks
   set awaited_service = split_part(substr(status_reason, 12), '/', 1),
       awaited_account = coalesce(nullif(split_part(substr(status_reason, 12), '/', 2), ''), 'primary')
 where status = 'paused' and status_reason ~ '^credential:[^/\s]+(/[^/\s]+)?$';

drop index tasks_waiting;
create index tasks_awaiting_credential on tasks (tenant_id, awaited_service, awaited_account)
    where awaited_service is not null;

-- Instances of a release before 0031 are stopped by now: nobody writes what these read out of keys, subjects and reasons.
drop trigger subject_ref_of_older_instance on deliveries;
drop function fill_subject_ref();
drop function subject_ref_of_key(text, text);
drop trigger faulty_part_of_older_instance on tasks;
drop function fill_faulty_part();
