-- Stores tasks with their due rows and the credentials that they name; answers those that are new. A task whose key its
-- tenant has already is left out, and so is all that belongs to it. New ones are found by `in`, never joined, see
-- `fire`. Tasks of one tenant ($21) are confined to it before a row is written, so that row-level security stands behind
-- them as behind every write for a caller; where they are of several, each row brings the tenant of its task.
with confined as materialized (
    select set_config('reveille.tenant', coalesce($21, '*'), true) as tenant
), given as (
    select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::jsonb[], $7::text[],
                         $8::text[], $9::bigint[], $10::bigint[], $11::timestamptz[], $12::timestamptz[],
                         $13::timestamptz[], $14::timestamptz[], $15::timestamptz[])
        as g (id, tenant_id, key, name, trigger_type, spec, status, status_reason, epoch, version, anchor_at,
              active_since, created_at, next_at, nominal_at)
), made as (
    insert into tasks (id, tenant_id, key, name, trigger_type, spec, status, status_reason, epoch, version,
                       anchor_at, active_since, zone_database, created_at, updated_at)
    select id, tenant_id, key, name, trigger_type, spec, status, status_reason, epoch, version,
           anchor_at, active_since, $16, created_at, created_at
      from confined, given
    on conflict (tenant_id, key) where key is not null do nothing
    returning id
), planned as (
    insert into due (task_id, tenant_id, kind, next_at, nominal_at, epoch)
    select id, tenant_id, trigger_type, next_at, nominal_at, epoch
      from given
     where id in (select id from made) or $16 is null
), named as (
    insert into task_credentials (task_id, tenant_id, service, account)
    select c.task_id, c.tenant_id, c.service, c.account
      from unnest($17::uuid[], $18::text[], $19::text[], $20::text[]) as c (task_id, tenant_id, service, account)
     where c.task_id in (select id from made) or $16 is null
)
select id from made
