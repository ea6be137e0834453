-- Tasks that go on with a credential that was saved, missing fields that were told, and by whom runs were asked for.
-- Same number, tables and columns as migrations/sqlite/0029_resumptions.sql.

-- Tasks that are paused for want of a credential, which was saved since: they are resumed in this order, a few at a time.
-- A task that is paused, resumed or deleted otherwise is here no more.
create table resumptions (
    seq             bigint generated always as identity primary key,
    task_id         uuid not null unique,
    tenant_id       text not null,
    service         text not null,
    account         text not null,
    -- an instance resumes it until then
    claimed_until   timestamptz
);
alter table resumptions enable row level security;
alter table resumptions force row level security;
create policy tenant on resumptions using (current_setting('reveille.tenant', true) in ('*', tenant_id));

-- The digest of the steps of a pipeline whose owner was told that they look for a field in vain: once for each version of
-- the steps.
alter table task_told add column missing text;

-- By whom a run was asked for: the token that theirs descends from (`token:<id>`, `token:admin`). Null: it fired by itself, or
-- is older than this column.
alter table runs add column requested_by text;
