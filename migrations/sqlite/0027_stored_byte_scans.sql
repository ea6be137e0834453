-- Rows from before stored bytes were counted: how far each table has been gone through for them.
-- Same number, tables and columns as migrations/postgres/0027_stored_byte_scans.sql.

-- Always empty here: migration 0024 has counted what was there.
create table stored_byte_scans (
    table_name  text primary key,
    position    text
);
