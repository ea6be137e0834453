-- Stored bytes: how much of what a tenant wrote is kept, counted where it is written and deleted.
-- Same number, tables and columns as migrations/postgres/0024_stored_bytes.sql.

alter table tenant_quotas add column stored_bytes integer;
update tenant_quotas set stored_bytes = 10737418240 where tenant_id = '*';
alter table tenant_usage add column stored_bytes integer not null default 0;

-- What was written and deleted since it was added to tenant_usage.
create table stored_byte_changes (
    id          integer primary key autoincrement,
    tenant_id   text not null,
    bytes       integer not null
);

-- What counts of a row.
alter table tasks add column stored_bytes integer
    generated always as (coalesce(octet_length(spec), 0)) virtual;
alter table runs add column stored_bytes integer
    generated always as (coalesce(octet_length(input), 0) + coalesce(octet_length(cause), 0) + coalesce(octet_length(output), 0) + coalesce(octet_length(error), 0)) virtual;
alter table turns add column stored_bytes integer
    generated always as (coalesce(octet_length(body), 0) + coalesce(octet_length(echo), 0)) virtual;
alter table events add column stored_bytes integer
    generated always as (coalesce(octet_length(body), 0)) virtual;
alter table window_events add column stored_bytes integer
    generated always as (coalesce(octet_length(body), 0)) virtual;
alter table dead_letters add column stored_bytes integer
    generated always as (coalesce(octet_length(body), 0)) virtual;
alter table deliveries add column stored_bytes integer
    generated always as (coalesce(octet_length(body), 0)) virtual;
alter table credentials add column stored_bytes integer
    generated always as (coalesce(octet_length(sealed), 0)) virtual;
alter table task_state add column stored_bytes integer
    generated always as (coalesce(octet_length(value), 0)) virtual;
alter table approvals add column stored_bytes integer
    generated always as (coalesce(octet_length(proposal), 0) + coalesce(octet_length(modifications), 0)) virtual;

-- What is there already.
insert into tenant_usage (tenant_id, tasks, polls, stored_bytes)
select tenant_id, 0, 0, sum(stored_bytes)
  from (select tenant_id, stored_bytes from tasks
        union all select tenant_id, stored_bytes from runs
        union all select r.tenant_id, t.stored_bytes from turns t join runs r on r.id = t.run_id
        union all select tenant_id, stored_bytes from events
        union all select t.tenant_id, e.stored_bytes from window_events e join tasks t on t.id = e.task_id
        union all select tenant_id, stored_bytes from dead_letters where tenant_id is not null
        union all select tenant_id, stored_bytes from deliveries
        union all select tenant_id, stored_bytes from credentials
        union all select tenant_id, stored_bytes from task_state
        union all select tenant_id, stored_bytes from approvals)
 where true
 group by tenant_id
on conflict (tenant_id) do update set stored_bytes = excluded.stored_bytes;

create trigger tasks_bytes_made after insert on tasks when new.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes);
end;
create trigger tasks_bytes_gone after delete on tasks when old.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (old.tenant_id, -old.stored_bytes);
end;
create trigger tasks_bytes_changed after update of spec on tasks when new.stored_bytes <> old.stored_bytes begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes - old.stored_bytes);
end;
create trigger runs_bytes_made after insert on runs when new.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes);
end;
create trigger runs_bytes_gone after delete on runs when old.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (old.tenant_id, -old.stored_bytes);
end;
create trigger runs_bytes_changed after update of input, cause, output, error on runs when new.stored_bytes <> old.stored_bytes begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes - old.stored_bytes);
end;
create trigger events_bytes_made after insert on events when new.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes);
end;
create trigger events_bytes_gone after delete on events when old.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (old.tenant_id, -old.stored_bytes);
end;
create trigger events_bytes_changed after update of body on events when new.stored_bytes <> old.stored_bytes begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes - old.stored_bytes);
end;
create trigger dead_letters_bytes_made after insert on dead_letters when new.stored_bytes > 0 and new.tenant_id is not null begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes);
end;
create trigger dead_letters_bytes_gone after delete on dead_letters when old.stored_bytes > 0 and old.tenant_id is not null begin
    insert into stored_byte_changes (tenant_id, bytes) values (old.tenant_id, -old.stored_bytes);
end;
create trigger dead_letters_bytes_changed after update of body on dead_letters when new.stored_bytes <> old.stored_bytes and new.tenant_id is not null begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes - old.stored_bytes);
end;
create trigger deliveries_bytes_made after insert on deliveries when new.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes);
end;
create trigger deliveries_bytes_gone after delete on deliveries when old.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (old.tenant_id, -old.stored_bytes);
end;
create trigger deliveries_bytes_changed after update of body on deliveries when new.stored_bytes <> old.stored_bytes begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes - old.stored_bytes);
end;
create trigger credentials_bytes_made after insert on credentials when new.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes);
end;
create trigger credentials_bytes_gone after delete on credentials when old.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (old.tenant_id, -old.stored_bytes);
end;
create trigger credentials_bytes_changed after update of sealed on credentials when new.stored_bytes <> old.stored_bytes begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes - old.stored_bytes);
end;
create trigger task_state_bytes_made after insert on task_state when new.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes);
end;
create trigger task_state_bytes_gone after delete on task_state when old.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (old.tenant_id, -old.stored_bytes);
end;
create trigger task_state_bytes_changed after update of value on task_state when new.stored_bytes <> old.stored_bytes begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes - old.stored_bytes);
end;
create trigger approvals_bytes_made after insert on approvals when new.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes);
end;
create trigger approvals_bytes_gone after delete on approvals when old.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes) values (old.tenant_id, -old.stored_bytes);
end;
create trigger approvals_bytes_changed after update of proposal, modifications on approvals when new.stored_bytes <> old.stored_bytes begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes - old.stored_bytes);
end;

-- Entries of transcripts name no tenant; they are deleted before their runs.
create trigger turns_bytes_made after insert on turns begin
    insert into stored_byte_changes (tenant_id, bytes)
    select tenant_id, new.stored_bytes from runs where id = new.run_id;
end;
create trigger turns_bytes_gone after delete on turns begin
    insert into stored_byte_changes (tenant_id, bytes)
    select tenant_id, -old.stored_bytes from runs where id = old.run_id;
end;
create trigger turns_bytes_changed after update of body, echo on turns when new.stored_bytes <> old.stored_bytes begin
    insert into stored_byte_changes (tenant_id, bytes)
    select tenant_id, new.stored_bytes - old.stored_bytes from runs where id = new.run_id;
end;

-- Held and collected events name their task: their bodies never outlive it.
create trigger window_events_bytes_made after insert on window_events when new.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes)
    select tenant_id, new.stored_bytes from tasks where id = new.task_id;
end;
create trigger window_events_bytes_gone after delete on window_events when old.stored_bytes > 0 begin
    insert into stored_byte_changes (tenant_id, bytes)
    select tenant_id, -old.stored_bytes from tasks where id = old.task_id;
end;
create trigger window_events_bytes_changed after update of body on window_events
when new.stored_bytes <> old.stored_bytes begin
    insert into stored_byte_changes (tenant_id, bytes)
    select tenant_id, new.stored_bytes - old.stored_bytes from tasks where id = new.task_id;
end;
