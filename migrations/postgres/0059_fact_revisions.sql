-- Revisions of facts: whoever has read the facts of a tenant knows by its revision whether they are as they were.
-- Same number, tables and columns as migrations/sqlite/0059_fact_revisions.sql.

-- raised by each change of a fact, whichever release makes it; a tenant without a row has changed none since
create table fact_revisions (
    tenant_id  text primary key,
    revision   bigint not null
);
alter table fact_revisions enable row level security;
alter table fact_revisions force row level security;
create policy tenant on fact_revisions using (current_setting('reveille.tenant', true) in ('*', tenant_id));

create function raise_fact_revisions() returns trigger language plpgsql as $$
begin
    insert into fact_revisions (tenant_id, revision)
    select distinct tenant_id, 1 from changed order by tenant_id
    on conflict (tenant_id) do update set revision = fact_revisions.revision + 1;
    return null;
end
$$;
create function raise_fact_revision() returns trigger language plpgsql as $$
begin
    insert into fact_revisions (tenant_id, revision) values (new.tenant_id, 1)
    on conflict (tenant_id) do update set revision = fact_revisions.revision + 1;
    return null;
end
$$;
create trigger revision_raised_when_made after insert on facts referencing new table as changed
    for each statement execute function raise_fact_revisions();
create trigger revision_raised_when_gone after delete on facts referencing old table as changed
    for each statement execute function raise_fact_revisions();
-- of what runs are told of a fact, and whether its text has a vector; claims of vectors and counted bytes change neither
create trigger revision_raised_when_changed
    after update of collection, is_profile, text, folded, origin, version, mentions, noted_at, last_used_at, embedded on facts
    for each row execute function raise_fact_revision();
