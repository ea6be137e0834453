-- Entries of the embedded bus are leased in turns of their tenants: one tenant's backlog keeps no other's entry waiting.
-- An instance of before, which names no tenant, puts its entries among those of `*`; no tenant has that name.
-- Same number, tables and columns as migrations/sqlite/0015_event_turns.sql.

alter table event_queue add column tenant_id text not null default '*';
-- Row-level security would hide the rows from whoever owns them.
select set_config('reveille.tenant', '*', true);
update event_queue
   set tenant_id = coalesce((select e.tenant_id from events e where e.seq = event_queue.seq), '*');
create index event_queue_turns on event_queue (tenant_id, seq);
