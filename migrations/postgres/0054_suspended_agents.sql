-- Runs that wait for people can be paused, and are counted against a quota of their tenant.
-- Same number, tables and columns as migrations/sqlite/0054_suspended_agents.sql.

-- since when nobody is reminded, nothing expires and no answer is taken, and until when at the latest; null: it is not paused
alter table parked add column paused_at timestamptz;
alter table parked add column paused_until timestamptz;
create index parked_suspended on parked (run_id) where reason = 'approval';
create index parked_suspended_of_tenant on parked (tenant_id, run_id) where reason = 'approval';
alter table tenant_quotas add column suspended_agents bigint;
