-- an attempt before may have got through, and nobody knows
alter table deliveries add column doubtful boolean not null default false;
-- who waits for what, so that whoever has all its places is passed over at once
create index deliveries_lines on deliveries (channel, tenant_id, next_at) where state = 'pending' and next_at is not null;
-- for lists by state
create index deliveries_of_state on deliveries (state, id);
create index deliveries_of_tenant_state on deliveries (tenant_id, state, id);
