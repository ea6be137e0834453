-- Definitions of the tools of MCP servers that the operator has accepted, and those that wait for that. They are the
-- operator's, and no tenant's. Entries of the record of audit about tools that are tried count as stored bytes.
-- Same number, tables and columns as migrations/sqlite/0062_tool_pins.sql.

-- Servers that have listed tools. The tools of the first list are accepted as they are. The row of a server is locked
-- by all that changes the definitions of its tools.
create table mcp_listed (
    server           text primary key,
    first_listed_at  timestamptz not null,
    listed_at        timestamptz not null
);

-- The accepted definition of a tool (null: none yet), and one that waits, with the hash of each. `accepted_by` is null
-- where the first list had it.
create table tool_pins (
    server           text not null,
    tool             text not null,
    accepted_hash    text,
    accepted         text,
    accepted_at      timestamptz,
    accepted_by      text,
    waiting_hash     text,
    waiting          text,
    waiting_since    timestamptz,
    waiting_seen_at  timestamptz,
    -- the definition of which the owners of tasks were told last
    told_hash        text,
    told_at          timestamptz,
    primary key (server, tool)
);
create index tool_pins_untold on tool_pins (server, tool) where waiting_hash is not null;

-- One row, bumped by each acceptance: instances look at it, and list again where it has moved.
create table tool_pin_version (
    id       bigint primary key,
    version  bigint not null
);
insert into tool_pin_version (id, version) values (1, 0);

-- Tasks that name a tool, of all tenants: a tool has no account.
create index task_credentials_of_tool on task_credentials (service, tenant_id, task_id) where account = '';

drop trigger measured_when_made on audit;
create trigger measured_when_made before insert on audit for each row
    when (new.action in ('credential.put', 'fact.added', 'fact.corrected', 'override.set', 'recipient.deleted', 'tool.called'))
    execute function measure_audit();
