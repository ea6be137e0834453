-- Publishes events: each that is new by its key in the log, with its place in the queue, in their order; answers how
-- many are new. Events of one tenant ($7) are confined to it before a row is written, so that row-level security stands
-- behind them as behind every write for a caller.
-- A lower `seq` could commit after a higher one, and who reads the log behind the higher would never see it. So one
-- statement publishes at a time, until its commit: it has its turn before a row has its `seq`.
with turn as materialized (
    select set_config('reveille.tenant', coalesce($7, '*'), true) as tenant,
           pg_advisory_xact_lock(8243101700221) as taken
), made as (
    insert into events (event_key, tenant_id, source, type, body, created_at)
    select e.event_key, e.tenant_id, e.source, e.type, e.body, $6::timestamptz
      from turn
     cross join unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::jsonb[])
                with ordinality as e (event_key, tenant_id, source, type, body, place)
     order by e.place
    on conflict (event_key) do nothing
    returning seq, tenant_id
), queued as (
    insert into event_queue (seq, tenant_id)
    select seq, tenant_id from made
)
select count(*) from made
