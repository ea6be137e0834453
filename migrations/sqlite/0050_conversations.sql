-- Conversations are tasks of their own kind, which lists of tasks pass over. One that was not used for long is deleted:
-- `active_since` is when it was used last.
-- Same number, tables and columns as migrations/postgres/0050_conversations.sql.
create index tasks_listed on tasks (tenant_id, id) where trigger_type <> 'chat';
create index conversations_of_tenant on tasks (tenant_id, id) where trigger_type = 'chat';
create index conversations_by_use on tasks (active_since, id) where trigger_type = 'chat';
