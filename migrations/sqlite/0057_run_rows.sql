-- Each row of `runs` counts 300 bytes, about what it takes with its indexes, besides its long parts. A row without any of those
-- counted nothing.
-- Same number, tables and columns as migrations/postgres/0057_run_rows.sql.

-- The column is computed where it is read, so rows that are there already count more from here on, too.
drop trigger runs_bytes_made;
drop trigger runs_bytes_gone;
drop trigger runs_bytes_changed;
alter table runs drop column stored_bytes;
alter table runs add column stored_bytes integer
    generated always as (300 + coalesce(octet_length(input), 0) + coalesce(octet_length(cause), 0) + coalesce(octet_length(output), 0) + coalesce(octet_length(error), 0)) virtual;
insert into stored_byte_changes (tenant_id, bytes)
select tenant_id, 300 * count(*) from runs group by tenant_id;

create trigger runs_bytes_made after insert on runs when new.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes);
end;
create trigger runs_bytes_gone after delete on runs when old.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (old.tenant_id, -old.stored_bytes);
end;
create trigger runs_bytes_changed after update of input, cause, output, error on runs when new.stored_bytes <> old.stored_bytes begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes - old.stored_bytes);
end;
