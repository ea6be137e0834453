-- Revisions of facts: whoever has read the facts of a tenant knows by its revision whether they are as they were.
-- Same number, tables and columns as migrations/postgres/0059_fact_revisions.sql.

-- raised by each change of a fact, whichever release makes it; a tenant without a row has changed none since
create table fact_revisions (
    tenant_id  text primary key,
    revision   integer not null
);

create trigger revision_raised_when_made after insert on facts begin
    insert into fact_revisions (tenant_id, revision) values (new.tenant_id, 1)
    on conflict (tenant_id) do update set revision = revision + 1;
end;
create trigger revision_raised_when_gone after delete on facts begin
    insert into fact_revisions (tenant_id, revision) values (old.tenant_id, 1)
    on conflict (tenant_id) do update set revision = revision + 1;
end;
-- of what runs are told of a fact, and whether its text has a vector; claims of vectors change neither
create trigger revision_raised_when_changed
after update of collection, is_profile, text, folded, origin, version, mentions, noted_at, last_used_at, embedded on facts begin
    insert into fact_revisions (tenant_id, revision) values (new.tenant_id, 1)
    on conflict (tenant_id) do update set revision = revision + 1;
end;
