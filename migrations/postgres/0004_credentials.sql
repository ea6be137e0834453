-- Credentials: secret documents of tenants, sealed for the row that they lie in.

create table credentials (
    tenant_id       text not null,
    service         text not null,
    account         text not null,
    id              uuid not null unique,
    -- the sealed document; bound to tenant, service, account and generation
    sealed          text not null,
    -- bumped by each write of the document: what was sealed for an earlier one opens no more
    generation      bigint not null,
    -- the master key that its data key is wrapped with
    key_id          text not null,
    hosts           jsonb not null,
    inject          jsonb,
    oauth           jsonb,
    status          text not null,
    status_reason   text,
    -- of the access token
    expires_at      timestamptz,
    -- whoever refreshes it has this lease
    refresh_lease   bigint not null default 0,
    refresh_until   timestamptz,
    version         bigint not null,
    created_at      timestamptz not null,
    updated_at      timestamptz not null,
    last_used_at    timestamptz,
    primary key (tenant_id, service, account)
);
create index credentials_of_key on credentials (key_id, id);
create index credentials_expiry on credentials (expires_at) where oauth is not null;

-- Who used which credential towards which host. Newest by id.
create table credential_uses (
    id              uuid primary key,
    tenant_id       text not null,
    service         text not null,
    account         text not null,
    at              timestamptz not null,
    run_id          uuid,
    task_id         uuid,
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
    task_id         uuid not null,
    tenant_id       text not null,
    service         text not null,
    account         text not null,
    primary key (task_id, service, account)
);
create index task_credentials_of on task_credentials (tenant_id, service, account);

alter table credentials enable row level security;
alter table credentials force row level security;
create policy tenant on credentials using (current_setting('reveille.tenant', true) in ('*', tenant_id));
alter table credential_uses enable row level security;
alter table credential_uses force row level security;
create policy tenant on credential_uses using (current_setting('reveille.tenant', true) in ('*', tenant_id));
alter table task_credentials enable row level security;
alter table task_credentials force row level security;
create policy tenant on task_credentials using (current_setting('reveille.tenant', true) in ('*', tenant_id));
