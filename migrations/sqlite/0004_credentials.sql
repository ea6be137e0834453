-- Credentials: secret documents of tenants, sealed for the row that they lie in.

create table credentials (
    tenant_id       text not null,
    service         text not null,
    account         text not null,
    id              blob not null unique,
    -- the sealed document; bound to tenant, service, account and generation
    sealed          text not null,
    -- bumped by each write of the document: what was sealed for an earlier one opens no more
    generation      integer not null,
    -- the master key that its data key is wrapped with
    key_id          text not null,
    hosts           text not null,
    inject          text,
    oauth           text,
    status          text not null,
    status_reason   text,
    -- of the access token
    expires_at      text,
    -- whoever refreshes it has this lease
    refresh_lease   integer not null default 0,
    refresh_until   text,
    version         integer not null,
    created_at      text not null,
    updated_at      text not null,
    last_used_at    text,
    primary key (tenant_id, service, account)
);
create index credentials_of_key on credentials (key_id, id);
create index credentials_expiry on credentials (expires_at) where oauth is not null;

-- Who used which credential towards which host. Newest by id.
create table credential_uses (
    id              blob primary key,
    tenant_id       text not null,
    service         text not null,
    account         text not null,
    at              text not null,
    run_id          blob,
    task_id         blob,
    -- what used it: tool:http_send, poll, step:order, webhook
    used_by         text not null,
    host            text not null,
    -- used, or why not: missing, needs_consent, host_not_bound ...
    outcome         text not null
);
create index credential_uses_of on credential_uses (tenant_id, service, account, id);
-- when one was last used, however often it was refused since
create index credential_uses_last on credential_uses (tenant_id, service, account, id) where outcome = 'used';

-- Which tasks name which credential; written with the task.
create table task_credentials (
    task_id         blob not null,
    tenant_id       text not null,
    service         text not null,
    account         text not null,
    primary key (task_id, service, account)
);
create index task_credentials_of on task_credentials (tenant_id, service, account);
