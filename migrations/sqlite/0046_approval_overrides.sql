-- Overrides of the approval matrix that are set while the service runs.
-- Same number, tables and columns as migrations/postgres/0046_approval_overrides.sql.

create table approval_overrides (
    id          blob primary key,
    tenant_id   text not null,
    -- for one task or for one agent; both null: for all runs of the tenant
    task_id     blob,
    agent       text,
    -- one row for each tool of a task, an agent or the tenant: their name, written and compared alone
    subject     text not null,
    -- of the task, when it was set: an edit ends one that lets calls through
    epoch       integer,
    tool        text not null,
    gate        text not null,
    condition   text,
    created_at  text not null,
    created_by  text not null,
    expires_at  text not null
);
create unique index approval_overrides_subject on approval_overrides (tenant_id, subject, tool);
create index approval_overrides_of_tenant on approval_overrides (tenant_id, id);
create index approval_overrides_of_task on approval_overrides (task_id) where task_id is not null;
