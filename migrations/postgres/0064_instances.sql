-- Instances of the service, of no tenant: each says once a minute that it lives, and takes its row away when it stops.
-- Nothing is decided by it; the operator looks at it.
-- Same number, tables and columns as migrations/sqlite/0064_instances.sql.

create table instances (
    id          uuid primary key,
    -- the machine's name, where it is known
    host        text,
    version     text not null,
    started_at  timestamptz not null,
    seen_at     timestamptz not null
);
