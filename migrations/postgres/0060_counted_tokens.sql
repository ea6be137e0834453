-- Tokens are found by their tenant, and dead ones by when they died. Uses of credentials and keys of `dedup` and `throttle` count
-- as stored bytes.
-- Same number, tables and columns as migrations/sqlite/0060_counted_tokens.sql.

create index tokens_of_tenant on tokens (tenant_id, id);
-- of those that may be forgotten: one that no other token made says who has asked for a run
create index tokens_revoked on tokens (revoked_at) where revoked_at is not null and root is not null;
create index tokens_expired on tokens (expires_at) where expires_at is not null and root is not null;

-- Each row counts 200 bytes, no more than it takes with its indexes. Rows that are there already count nothing, when they go, too:
-- uses go with their retention, keys with their time.
alter table credential_uses add column stored_bytes bigint not null default 0;
alter table credential_uses alter column stored_bytes set default 200;
create trigger bytes_made after insert on credential_uses referencing new table as made
    for each statement execute function count_bytes_made();
create trigger bytes_gone after delete on credential_uses referencing old table as gone
    for each statement execute function count_bytes_gone();

-- Keys name their task, and go before it. An event that finds its key makes none.
alter table dedups add column stored_bytes bigint not null default 0;
alter table dedups alter column stored_bytes set default 200;
alter table throttles add column stored_bytes bigint not null default 0;
alter table throttles alter column stored_bytes set default 200;
create function count_bytes_made_in_keys() returns trigger language plpgsql as $$
begin
    insert into stored_byte_changes (tenant_id, bytes)
    select t.tenant_id, new.stored_bytes from tasks t where t.id = new.task_id;
    return null;
end
$$;
-- one look by its id for each key, whatever the planner believes of tables that were empty
create function count_bytes_gone_from_keys() returns trigger language plpgsql as $$
begin
    insert into stored_byte_changes (tenant_id, bytes)
    select t.tenant_id, -sum(gone.stored_bytes)
      from gone cross join lateral (select tenant_id from tasks where id = gone.task_id offset 0) t
     where gone.stored_bytes > 0 group by t.tenant_id;
    return null;
end
$$;
create trigger bytes_made after insert on dedups for each row execute function count_bytes_made_in_keys();
create trigger bytes_gone after delete on dedups referencing old table as gone
    for each statement execute function count_bytes_gone_from_keys();
create trigger bytes_made after insert on throttles for each row execute function count_bytes_made_in_keys();
create trigger bytes_gone after delete on throttles referencing old table as gone
    for each statement execute function count_bytes_gone_from_keys();
