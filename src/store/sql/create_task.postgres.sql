-- Stores one task with its due row: one statement, so one commit and one round trip.
with made as (
    insert into tasks (id, tenant_id, key, name, trigger_type, spec, status, status_reason, epoch, version,
                       anchor_at, active_since, zone_database, created_at, updated_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $14)
)
insert into due (task_id, kind, next_at, nominal_at, epoch) values ($1, $5, $15, $16, $9)
