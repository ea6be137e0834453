-- Stored bytes of what was kept uncounted: answers under an idempotency key, events that wait for the bus, facts with their
-- earlier versions and vectors, and entries of the record of audit that requests alone bound. Waiting events are found by their
-- tenant, and pauses of runs are counted.
-- Same number, tables and columns as migrations/postgres/0056_kept_bytes.sql.

-- of all of them; whatever does not say so itself has no use for it
create index bus_outbox_of_tenant on bus_outbox (tenant_id, seq) where seq > 0;

-- how often the run was paused while it waits: each pause stays on the record of audit
alter table parked add column pauses integer not null default 0;

-- What counts of a row. Answers to admin tokens (`*`) are no tenant's and count zero. Of the record of audit those entries count
-- that a tenant adds by requests as often as it likes, without their seals.
alter table facts add column stored_bytes integer
    generated always as (octet_length(text) + octet_length(folded)) virtual;
alter table fact_versions add column stored_bytes integer
    generated always as (octet_length(text)) virtual;
alter table fact_vectors add column stored_bytes integer
    generated always as (octet_length(vector)) virtual;
alter table idempotency add column stored_bytes integer
    generated always as (case when tenant_id = '*' then 0 else octet_length(key) + octet_length(body) end) virtual;
alter table bus_outbox add column stored_bytes integer
    generated always as (octet_length(body)) virtual;
alter table audit add column stored_bytes integer
    generated always as (
        case when action in ('credential.put', 'fact.added', 'fact.corrected', 'override.set', 'recipient.deleted')
             then octet_length(id) + octet_length(tenant_id) + octet_length(at) + octet_length(actor) + octet_length(via)
                  + octet_length(action) + octet_length(subject_type) + octet_length(subject_id) + octet_length(body)
             else 0 end) virtual;

-- What is there already.
insert into stored_byte_changes (tenant_id, bytes)
select tenant_id, sum(stored_bytes)
  from (select tenant_id, stored_bytes from facts
        union all select tenant_id, stored_bytes from fact_versions
        union all select tenant_id, stored_bytes from fact_vectors
        union all select tenant_id, stored_bytes from idempotency
        union all select tenant_id, stored_bytes from bus_outbox
        union all select tenant_id, stored_bytes from audit)
 where stored_bytes > 0
 group by tenant_id;

create trigger facts_bytes_made after insert on facts when new.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes);
end;
create trigger facts_bytes_gone after delete on facts when old.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (old.tenant_id, -old.stored_bytes);
end;
create trigger facts_bytes_changed after update of text, folded on facts when new.stored_bytes <> old.stored_bytes begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes - old.stored_bytes);
end;
create trigger fact_versions_bytes_made after insert on fact_versions when new.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes);
end;
create trigger fact_versions_bytes_gone after delete on fact_versions when old.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (old.tenant_id, -old.stored_bytes);
end;
create trigger fact_versions_bytes_changed after update of text on fact_versions when new.stored_bytes <> old.stored_bytes begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes - old.stored_bytes);
end;
create trigger fact_vectors_bytes_made after insert on fact_vectors when new.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes);
end;
create trigger fact_vectors_bytes_gone after delete on fact_vectors when old.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (old.tenant_id, -old.stored_bytes);
end;
create trigger fact_vectors_bytes_changed after update of vector on fact_vectors when new.stored_bytes <> old.stored_bytes begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes - old.stored_bytes);
end;
create trigger idempotency_bytes_made after insert on idempotency when new.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes);
end;
create trigger idempotency_bytes_gone after delete on idempotency when old.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (old.tenant_id, -old.stored_bytes);
end;
create trigger idempotency_bytes_changed after update of key, body on idempotency when new.stored_bytes <> old.stored_bytes begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes - old.stored_bytes);
end;
create trigger bus_outbox_bytes_made after insert on bus_outbox when new.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes);
end;
create trigger bus_outbox_bytes_gone after delete on bus_outbox when old.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (old.tenant_id, -old.stored_bytes);
end;
create trigger bus_outbox_bytes_changed after update of body on bus_outbox when new.stored_bytes <> old.stored_bytes begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes - old.stored_bytes);
end;
create trigger audit_bytes_made after insert on audit when new.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes);
end;
create trigger audit_bytes_gone after delete on audit when old.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (old.tenant_id, -old.stored_bytes);
end;
create trigger audit_bytes_changed after update of at, actor, via, action, subject_type, body on audit
when new.stored_bytes <> old.stored_bytes begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes - old.stored_bytes);
end;

-- When a release of zone rules that can't be read was set aside. Before, its name said so: it began with `-`.
alter table zone_releases add column set_aside_at text;
delete from zone_releases
 where release like '-%' and exists (select 1 from zone_releases again where '-' || again.release = zone_releases.release);
update zone_releases set release = substr(release, 2), set_aside_at = created_at where release like '-%';

-- Windows that are due, of one tenant: those that close, and those whose held events are released.
create index event_windows_closing on event_windows (tenant_id, closes_at) where kind <> 'buffer' and closes_at is not null;
create index event_windows_released on event_windows (tenant_id, closes_at) where kind = 'buffer' and closes_at is not null;

-- The id of an event of the log, by which one is found whose source is not known. A body that is no JSON has none, nor has one
-- whose id does not fit into an index of Postgres beside its tenant. The index has the source, too: what begins with the same
-- letters is told apart without a look at the events.
alter table events add column event_id text
    generated always as (
        case when typeof(body) = 'text' and json_valid(body)
             then case when octet_length(tenant_id) + octet_length(body ->> 'id') <= 2600 then body ->> 'id' end end) virtual;
create index events_by_id on events (tenant_id, event_id, seq, source);

-- Tasks that go on after their credential are found by their tenant, whose turn it is.
create index resumptions_of_tenant on resumptions (tenant_id, seq) where seq > 0;
