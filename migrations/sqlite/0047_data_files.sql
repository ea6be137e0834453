-- Data files: results of tools that are too large for a conversation, in chunks, where every instance reaches them.
-- Same number, tables and columns as migrations/postgres/0047_data_files.sql.

-- One file. `call_key` is the idempotency key of the call that made it: a call that is carried out once more writes its file
-- anew. Files are given up in the order of their last use.
create table data_files (
    id           blob primary key,
    tenant_id    text not null,
    run_id       blob not null,
    call_key     text not null,
    tool         text not null,
    media_type   text not null,
    bytes        integer not null,
    summary      text not null,
    created_at   text not null,
    last_used_at text not null
);
create unique index data_files_by_call on data_files (call_key);
create index data_files_by_use on data_files (last_used_at, id, bytes);
create index data_files_by_tenant on data_files (tenant_id, last_used_at, id, bytes);

-- How many bytes the files of a tenant may have; null: as everybody's.
alter table tenant_quotas add column data_file_bytes integer;

-- The content of a file, in pieces of one size; the last one may be shorter.
create table data_file_chunks (
    file_id   blob not null references data_files (id) on delete cascade,
    number    integer not null,
    tenant_id text not null,
    content   blob not null,
    primary key (file_id, number)
);
