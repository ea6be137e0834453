-- Definitions of the tools of MCP servers that the operator has accepted, and those that wait for that. They are the
-- operator's, and no tenant's. Entries of the record of audit about tools that are tried count as stored bytes.
-- Same number, tables and columns as migrations/postgres/0062_tool_pins.sql.

-- Servers that have listed tools. The tools of the first list are accepted as they are. The row of a server is locked
-- by all that changes the definitions of its tools.
create table mcp_listed (
    server           text primary key,
    first_listed_at  text not null,
    listed_at        text not null
);

-- The accepted definition of a tool (null: none yet), and one that waits, with the hash of each. `accepted_by` is null
-- where the first list had it.
create table tool_pins (
    server           text not null,
    tool             text not null,
    accepted_hash    text,
    accepted         text,
    accepted_at      text,
    accepted_by      text,
    waiting_hash     text,
    waiting          text,
    waiting_since    text,
    waiting_seen_at  text,
    -- the definition of which the owners of tasks were told last
    told_hash        text,
    told_at          text,
    primary key (server, tool)
);
create index tool_pins_untold on tool_pins (server, tool) where waiting_hash is not null;

-- One row, bumped by each acceptance: instances look at it, and list again where it has moved.
create table tool_pin_version (
    id       integer primary key,
    version  integer not null
);
insert into tool_pin_version (id, version) values (1, 0);

-- Tasks that name a tool, of all tenants: a tool has no account.
create index task_credentials_of_tool on task_credentials (service, tenant_id, task_id) where account = '';

-- The column is computed when it is read, so that it is made anew without a change of any row.
drop trigger audit_bytes_made;
drop trigger audit_bytes_gone;
drop trigger audit_bytes_changed;
alter table audit drop column stored_bytes;
alter table audit add column stored_bytes integer
    generated always as (
        case when action in ('credential.put', 'fact.added', 'fact.corrected', 'override.set', 'recipient.deleted', 'tool.called')
             then octet_length(id) + octet_length(tenant_id) + octet_length(at) + octet_length(actor) + octet_length(via)
                  + octet_length(action) + octet_length(subject_type) + octet_length(subject_id) + octet_length(body)
             else 0 end) virtual;
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
