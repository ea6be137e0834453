-- Runs that one tenant has under way at once: a number of its own over `engine.max_runs_per_tenant`.
-- Same number, tables and columns as migrations/postgres/0025_concurrent_runs.sql.

alter table tenant_quotas add column concurrent_runs integer;
create index tenant_quotas_concurrent_runs on tenant_quotas (tenant_id) where concurrent_runs is not null;
