-- Stored bytes: how much of what a tenant wrote is kept, counted where it is written and deleted.
-- Same number, tables and columns as migrations/sqlite/0024_stored_bytes.sql.

alter table tenant_quotas add column stored_bytes bigint;
select set_config('reveille.tenant', '*', true);
update tenant_quotas set stored_bytes = 10737418240 where tenant_id = '*';
alter table tenant_usage add column stored_bytes bigint not null default 0;

-- What was written and deleted since it was added to tenant_usage. Rows are added and never changed, so that two writers
-- of one tenant never wait for each other.
create table stored_byte_changes (
    id          bigint generated always as identity primary key,
    tenant_id   text not null,
    bytes       bigint not null
);
alter table stored_byte_changes enable row level security;
alter table stored_byte_changes force row level security;
create policy tenant on stored_byte_changes using (current_setting('reveille.tenant', true) in ('*', tenant_id));

-- What was counted of a row stands in it, so that its deletion gives back exactly that, and reads no long value. Rows that
-- are there already count nothing: to read all of them would hold up the upgrade.
do $$
declare
    counted record;
    size text;
    there text;
begin
    for counted in
        select * from (values
            ('tasks', array['spec'], array['spec']),
            ('runs', array['input', 'cause', 'output', 'error'], array['output', 'error']),
            ('turns', array['body', 'echo'], null),
            ('events', array['body'], null),
            ('window_events', array['body'], array['body']),
            ('dead_letters', array['body'], null),
            ('deliveries', array['body'], null),
            ('credentials', array['sealed'], array['sealed']),
            ('task_state', array['value'], array['value']),
            ('approvals', array['proposal', 'modifications'], array['modifications'])
        ) as list (name, parts, rewritten)
    loop
        select string_agg(format('coalesce(pg_column_size(new.%I), 0)', part), ' + '),
               string_agg(format('new.%I', part), ', ')
          into size, there from unnest(counted.parts) part;
        execute format('alter table %I add column stored_bytes bigint not null default 0', counted.name);
        execute format('create function measure_%s() returns trigger language plpgsql as '
                       '$t$ begin new.stored_bytes := %s; return new; end $t$', counted.name, size);
        execute format('create trigger measured_when_made before insert on %I for each row
                        when (num_nonnulls(%s) > 0) execute function measure_%s()',
                       counted.name, there, counted.name);
        if counted.rewritten is not null then
            execute format('create trigger measured_when_changed before update of %s on %I for each row
                            when (num_nonnulls(%s) > 0 or old.stored_bytes > 0) execute function measure_%s()',
                           (select string_agg(quote_ident(part), ', ') from unnest(counted.rewritten) part),
                           counted.name, there, counted.name);
        end if;
    end loop;
end
$$;

create function count_bytes_made() returns trigger language plpgsql as $$
begin
    insert into stored_byte_changes (tenant_id, bytes)
    select tenant_id, sum(stored_bytes) from made
     where stored_bytes > 0 and tenant_id is not null group by tenant_id;
    return null;
end
$$;
create function count_bytes_gone() returns trigger language plpgsql as $$
begin
    insert into stored_byte_changes (tenant_id, bytes)
    select tenant_id, -sum(stored_bytes) from gone
     where stored_bytes > 0 and tenant_id is not null group by tenant_id;
    return null;
end
$$;
create function count_bytes_changed() returns trigger language plpgsql as $$
begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes - old.stored_bytes);
    return null;
end
$$;
do $$
declare
    name text;
begin
    foreach name in array array['tasks', 'runs', 'events', 'dead_letters', 'deliveries', 'credentials', 'task_state', 'approvals']
    loop
        execute format('create trigger bytes_made after insert on %I referencing new table as made
                        for each statement execute function count_bytes_made()', name);
        execute format('create trigger bytes_gone after delete on %I referencing old table as gone
                        for each statement execute function count_bytes_gone()', name);
    end loop;
end
$$;
create trigger bytes_changed after update of spec on tasks for each row
    when (old.stored_bytes <> new.stored_bytes) execute function count_bytes_changed();
create trigger bytes_changed after update of output, error on runs for each row
    when (old.stored_bytes <> new.stored_bytes) execute function count_bytes_changed();
create trigger bytes_changed after update of sealed on credentials for each row
    when (old.stored_bytes <> new.stored_bytes) execute function count_bytes_changed();
create trigger bytes_changed after update of value on task_state for each row
    when (old.stored_bytes <> new.stored_bytes) execute function count_bytes_changed();
create trigger bytes_changed after update of modifications on approvals for each row
    when (old.stored_bytes <> new.stored_bytes) execute function count_bytes_changed();

-- Entries of transcripts name no tenant. They are deleted with their runs alone, by a statement that counts them itself.
create function count_bytes_made_in_turns() returns trigger language plpgsql as $$
begin
    insert into stored_byte_changes (tenant_id, bytes)
    select r.tenant_id, new.stored_bytes from runs r where r.id = new.run_id;
    return null;
end
$$;
create trigger bytes_made after insert on turns for each row execute function count_bytes_made_in_turns();

-- Held and collected events name their task: their bodies never outlive it.
create function count_bytes_made_in_window_events() returns trigger language plpgsql as $$
begin
    insert into stored_byte_changes (tenant_id, bytes)
    select t.tenant_id, new.stored_bytes from tasks t where t.id = new.task_id;
    return null;
end
$$;
create function count_bytes_gone_from_window_events() returns trigger language plpgsql as $$
begin
    insert into stored_byte_changes (tenant_id, bytes)
    select t.tenant_id, -old.stored_bytes from tasks t where t.id = old.task_id;
    return null;
end
$$;
create function count_bytes_changed_in_window_events() returns trigger language plpgsql as $$
begin
    insert into stored_byte_changes (tenant_id, bytes)
    select t.tenant_id, new.stored_bytes - old.stored_bytes from tasks t where t.id = new.task_id;
    return null;
end
$$;
create trigger bytes_made after insert on window_events for each row
    when (new.stored_bytes > 0) execute function count_bytes_made_in_window_events();
create trigger bytes_gone after delete on window_events for each row
    when (old.stored_bytes > 0) execute function count_bytes_gone_from_window_events();
create trigger bytes_changed after update of body on window_events for each row
    when (old.stored_bytes <> new.stored_bytes) execute function count_bytes_changed_in_window_events();
