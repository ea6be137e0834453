-- Stored bytes of what was kept uncounted: answers under an idempotency key, events that wait for the bus, facts with their
-- earlier versions and vectors, and entries of the record of audit that requests alone bound. Waiting events are found by their
-- tenant, and pauses of runs are counted.
-- Same number, tables and columns as migrations/sqlite/0056_kept_bytes.sql.

-- of all of them; whatever does not say so itself has no use for it
create index bus_outbox_of_tenant on bus_outbox (tenant_id, seq) where seq > 0;

-- how often the run was paused while it waits: each pause stays on the record of audit
alter table parked add column pauses bigint not null default 0;

-- As in migration 0024: what was counted of a row stands in it. Answers to admin tokens (`*`) are no tenant's and count zero. Of
-- the record of audit those entries count that a tenant adds by requests as often as it likes; an entry is as long as it was when
-- it was made, without its seal.
do $$
declare
    counted record;
    size text;
begin
    for counted in
        select * from (values
            ('facts', array['text', 'folded'], true, 'true'),
            ('fact_versions', array['text'], false, 'true'),
            ('fact_vectors', array['vector'], true, 'true'),
            ('idempotency', array['key', 'body'], true, 'new.tenant_id <> ''*'''),
            ('bus_outbox', array['body'], false, 'true'),
            ('audit', array['id', 'tenant_id', 'at', 'actor', 'via', 'action', 'subject_type', 'subject_id', 'body'], false,
             'new.action in (''credential.put'', ''fact.added'', ''fact.corrected'', ''override.set'', ''recipient.deleted'')')
        ) as list (name, parts, is_rewritten, counts)
    loop
        select string_agg(format('pg_column_size(new.%I)', part), ' + ') into size from unnest(counted.parts) part;
        execute format('alter table %I add column stored_bytes bigint not null default 0', counted.name);
        execute format('create function measure_%s() returns trigger language plpgsql as '
                       '$t$ begin new.stored_bytes := %s; return new; end $t$', counted.name, size);
        execute format('create trigger measured_when_made before insert on %I for each row
                        when (%s) execute function measure_%s()', counted.name, counted.counts, counted.name);
        execute format('create trigger bytes_made after insert on %I referencing new table as made
                        for each statement execute function count_bytes_made()', counted.name);
        execute format('create trigger bytes_gone after delete on %I referencing old table as gone
                        for each statement execute function count_bytes_gone()', counted.name);
        if counted.is_rewritten then
            select string_agg(quote_ident(part), ', ') into size from unnest(counted.parts) part;
            execute format('create trigger measured_when_changed before update of %s on %I for each row
                            when (%s) execute function measure_%s()',
                           size, counted.name, counted.counts, counted.name);
            execute format('create trigger bytes_changed after update of %s on %I for each row
                            when (old.stored_bytes <> new.stored_bytes) execute function count_bytes_changed()',
                           size, counted.name);
        end if;
    end loop;
end
$$;

-- Facts and entries that are there already are counted little by little, as rows of before were (migration 0027). Answers and
-- waiting events go within a day: those that are there count nothing, when they go, too.
select set_config('reveille.tenant', '*', true);
insert into stored_byte_scans (table_name)
select 'facts' where exists (select 1 from facts)
union all select 'fact_versions' where exists (select 1 from fact_versions)
union all select 'fact_vectors' where exists (select 1 from fact_vectors)
union all select 'audit' where exists (select 1 from audit);

-- When a release of zone rules that can't be read was set aside. Before, its name said so: it began with `-`.
alter table zone_releases add column set_aside_at timestamptz;
delete from zone_releases
 where release like '-%' and exists (select 1 from zone_releases again where '-' || again.release = zone_releases.release);
update zone_releases set release = substr(release, 2), set_aside_at = created_at where release like '-%';

-- Windows that are due, of one tenant: those that close, and those whose held events are released.
create index event_windows_closing on event_windows (tenant_id, closes_at) where kind <> 'buffer' and closes_at is not null;
create index event_windows_released on event_windows (tenant_id, closes_at) where kind = 'buffer' and closes_at is not null;

-- The id of an event of the log, by which one is found whose source is not known. Ids are in the order of their bytes, as on
-- SQLite. One that does not fit into an index beside its tenant is left out. The table is rewritten once.
alter table events add column event_id text collate "C"
    generated always as (
        case when octet_length(tenant_id) + octet_length(body ->> 'id') <= 2600 then body ->> 'id' end) stored;
create index events_by_id on events (tenant_id, event_id, seq);

-- Tasks that go on after their credential are found by their tenant, whose turn it is.
create index resumptions_of_tenant on resumptions (tenant_id, seq) where seq > 0;
