-- Stores one task with its due row: one statement, so one commit and one round trip. It is confined to the task's tenant
-- before the row is written, so that row-level security stands behind it as behind every write for a caller.
with confined as materialized (
    select set_config('reveille.tenant', $2, true) as tenant
), made as (
    insert into tasks (id, tenant_id, key, name, trigger_type, spec, status, status_reason, epoch, version,
                       anchor_at, active_since, zone_database, created_at, updated_at)
    select $1, confined.tenant, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $14 from confined
)
insert into due (task_id, tenant_id, kind, next_at, nominal_at, epoch) values ($1, $2, $5, $15, $16, $9)
