-- The oldest differences that nobody else is adding up are added to the numbers of their tenants, in the order of the names.
with counted as (
    delete from stored_byte_changes
     where id in (select id from stored_byte_changes order by id limit $1 for update skip locked)
    returning tenant_id, bytes
), added as (
    insert into tenant_usage as u (tenant_id, tasks, polls, stored_bytes)
    select tenant_id, 0, 0, sum(bytes)::bigint from counted group by tenant_id order by tenant_id
    on conflict (tenant_id) do update set stored_bytes = u.stored_bytes + excluded.stored_bytes
)
select count(*) from counted
