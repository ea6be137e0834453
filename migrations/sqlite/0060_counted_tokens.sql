-- Tokens are found by their tenant, and dead ones by when they died. Uses of credentials and keys of `dedup` and `throttle` count
-- as stored bytes.
-- Same number, tables and columns as migrations/postgres/0060_counted_tokens.sql.

create index tokens_of_tenant on tokens (tenant_id, id);
-- of those that may be forgotten: one that no other token made says who has asked for a run
create index tokens_revoked on tokens (revoked_at) where revoked_at is not null and root is not null;
create index tokens_expired on tokens (expires_at) where expires_at is not null and root is not null;

-- Each row counts 200 bytes, no more than it takes with its indexes.
alter table credential_uses add column stored_bytes integer generated always as (200) virtual;
alter table dedups add column stored_bytes integer generated always as (200) virtual;
alter table throttles add column stored_bytes integer generated always as (200) virtual;

-- What is there already.
insert into stored_byte_changes (tenant_id, bytes)
select tenant_id, sum(stored_bytes)
  from (select tenant_id, stored_bytes from credential_uses
        union all select t.tenant_id, k.stored_bytes from dedups k join tasks t on t.id = k.task_id
        union all select t.tenant_id, k.stored_bytes from throttles k join tasks t on t.id = k.task_id)
 group by tenant_id;

create trigger credential_uses_bytes_made after insert on credential_uses begin
    insert into stored_byte_changes (tenant_id, bytes) values (new.tenant_id, new.stored_bytes);
end;
create trigger credential_uses_bytes_gone after delete on credential_uses begin
    insert into stored_byte_changes (tenant_id, bytes) values (old.tenant_id, -old.stored_bytes);
end;

-- Keys name their task, and go before it. An event that finds its key makes none.
create trigger dedups_bytes_made after insert on dedups begin
    insert into stored_byte_changes (tenant_id, bytes)
    select tenant_id, new.stored_bytes from tasks where id = new.task_id;
end;
create trigger dedups_bytes_gone after delete on dedups begin
    insert into stored_byte_changes (tenant_id, bytes)
    select tenant_id, -old.stored_bytes from tasks where id = old.task_id;
end;
create trigger throttles_bytes_made after insert on throttles begin
    insert into stored_byte_changes (tenant_id, bytes)
    select tenant_id, new.stored_bytes from tasks where id = new.task_id;
end;
create trigger throttles_bytes_gone after delete on throttles begin
    insert into stored_byte_changes (tenant_id, bytes)
    select tenant_id, -old.stored_bytes from tasks where id = old.task_id;
end;
