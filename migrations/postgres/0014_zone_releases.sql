-- The rules of time zones that instances plan by. The newest release is the one that plans: instances that lack it read its
-- rules here, and what an earlier one has planned is planned anew, for which its rules are needed, too.
-- Same number, tables and columns as migrations/sqlite/0014_zone_releases.sql.

create table zone_releases (
    release         text primary key,
    rules           bytea not null,
    created_at      timestamptz not null,
    -- when all that earlier releases had planned was planned anew; until then nothing is fired by the clock
    planned_at      timestamptz
);
