-- The operator's halts: of everything, of a tenant, and of a task.
-- Same number, tables and columns as migrations/postgres/0041_halts.sql.

-- `stopped` by the stop switch, of all tenants where the name is '*'; or `tenant_disabled`.
create table halts (
    tenant_id  text not null,
    kind       text not null,
    reason     text,
    halted_by  text not null,
    since      text not null,
    primary key (tenant_id, kind)
);

-- One row, bumped by each change of `halts`: instances look at it often, and read `halts` only where it has moved.
create table halt_version (
    id      integer primary key,
    version integer not null
);
insert into halt_version (id, version) values (1, 0);

-- Of a task that the operator has disabled: by whom. Null where the service did it.
alter table tasks add column disabled_by text;

