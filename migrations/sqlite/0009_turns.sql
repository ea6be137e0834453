-- Ready runs by tenant, so that each has its turn. What is due later is leased by the same look, so no index of its own.
create index queue_turns on queue (tenant_id, priority desc, run_at) where state = 'ready';
drop index queue_next;
