-- Entries of transcripts that one statement writes are counted together: an append has several, of several runs. Indexes of
-- work keep no entries together.
-- Same number as migrations/sqlite/0061_work_of_one_instant.sql, and the same tables and columns.
create or replace function count_bytes_made_in_turns() returns trigger language plpgsql as $$
begin
    -- one look by its id for each run, whatever the planner believes of tables that were empty
    insert into stored_byte_changes (tenant_id, bytes)
    select r.tenant_id, sum(of_run.bytes)
      from (select run_id, sum(stored_bytes) as bytes from made where stored_bytes > 0 group by run_id) of_run
     cross join lateral (select tenant_id from runs where id = of_run.run_id offset 0) r
     group by r.tenant_id;
    return null;
end
$$;
drop trigger bytes_made on turns;
create trigger bytes_made after insert on turns referencing new table as made
    for each statement execute function count_bytes_made_in_turns();

-- Rows of work leave these indexes from the front, in the order in which they are looked for. Rows of one instant have equal keys,
-- and entries with equal keys are kept together, so that one is dropped only once all of them are dead: until then each look
-- passes over them again. By themselves they are dropped by the next look. With 10,000 runs of one instant, a statement that
-- leases 20 of them passed over 3,700 dead ones.
alter index queue_ready set (deduplicate_items = off);
alter index queue_of_tenant set (deduplicate_items = off);
alter index due_next set (deduplicate_items = off);
alter index due_of_tenant set (deduplicate_items = off);
alter index due_polls set (deduplicate_items = off);
alter index parked_wake set (deduplicate_items = off);
alter index deliveries_next set (deduplicate_items = off);
alter index deliveries_pending_of_tenant set (deduplicate_items = off);
