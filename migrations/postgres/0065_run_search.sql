-- Runs are looked for by the beginning of their fire key, and by that of the name of their task: the order of both is that of
-- bytes, so that all texts with one beginning stand next to each other.
-- Same number, tables and columns as migrations/sqlite/0065_run_search.sql.
create index runs_by_key on runs (tenant_id, fire_key collate "C");

-- A column, and no index of the expression: where rows are confined to a tenant, a function that may tell of them is asked only
-- after that, and so finds none by an index.
alter table tasks add column folded_name text collate "C" generated always as (lower(name)) stored;
create index tasks_by_name on tasks (tenant_id, folded_name) where trigger_type <> 'chat';
