-- Approvals: what a person is asked, who may answer by which link, what is allowed for good, and the record of it all.
-- Same number, tables and columns as migrations/sqlite/0003_approvals.sql.

-- A question about one pending tool call. `proposal` is what was shown, whole; nothing in it changes.
create table approvals (
    id              uuid primary key,
    batch_id        uuid not null,
    run_id          uuid not null,
    task_id         uuid,
    tenant_id       text not null,
    turn            bigint not null,
    call_id         text not null,
    -- the question after this one about the same call, where what would run had changed meanwhile
    replaced_by     uuid,
    tool            text not null,
    digest          text not null,
    proposal        jsonb not null,
    status          text not null,
    created_at      timestamptz not null,
    expires_at      timestamptz not null,
    decided_at      timestamptz,
    decided_by      text,
    decided_via     text,
    comment         text,
    -- the arguments as decided, where they were edited, and the digest of the call that may run
    modifications   jsonb,
    decided_digest  text,
    -- not to be executed before
    hold_until      timestamptz,
    -- when its execution began: the intent of an act that may not be repeated
    began_at        timestamptz,
    outcome         jsonb
);
-- one question at a time about a call; one that was replaced stays as a record
create unique index approvals_of_call on approvals (run_id, turn, call_id) where replaced_by is null;
create index approvals_of_run on approvals (run_id, turn, id);
create index approvals_of_batch on approvals (batch_id);
create index approvals_of_tenant on approvals (tenant_id, id);
create index approvals_pending on approvals (tenant_id, id) where status = 'pending';
create index approvals_open on approvals (id) where status = 'pending';
create index approvals_open_of_run on approvals (run_id) where status = 'pending';
create index approvals_of_task on approvals (task_id, id);

create table approval_votes (
    approval_id     uuid not null,
    approver        text not null,
    digest          text not null,
    at              timestamptz not null,
    primary key (approval_id, approver, digest)
);

-- Links by the hash of their token; the token itself is made when a message is sent, and stored nowhere.
create table approval_links (
    token_hash      bytea primary key,
    batch_id        uuid not null,
    tenant_id       text not null,
    recipient       text not null,
    channel         text not null,
    expires_at      timestamptz not null
);
create index approval_links_of_batch on approval_links (batch_id);
create index approval_links_expiry on approval_links (expires_at);

-- "Always allow this": one tool of one task, with these arguments, until then, so often.
create table grants (
    id              uuid primary key,
    tenant_id       text not null,
    task_id         uuid not null,
    tool            text not null,
    -- the epoch of the task for which it was given: an edit ends it
    epoch           bigint not null,
    arguments       jsonb not null,
    definition      text not null,
    uses_left       bigint,
    created_at      timestamptz not null,
    created_by      text not null,
    expires_at      timestamptz not null,
    revoked_at      timestamptz,
    revoked_by      text
);
create index grants_of_tenant on grants (tenant_id, id);
create index grants_of_task on grants (task_id, tool) where revoked_at is null;

-- A use of a grant, so that a call that is repeated after a crash uses it once.
create table grant_uses (
    run_id          uuid not null,
    turn            bigint not null,
    call_id         text not null,
    grant_id        uuid not null,
    at              timestamptz not null,
    primary key (run_id, turn, call_id)
);

-- Who did what. Rows come unchained; the sealer gives each its place in the chain and its hash.
create table audit (
    id              uuid primary key,
    tenant_id       text not null,
    at              timestamptz not null,
    actor           text not null,
    via             text not null,
    action          text not null,
    subject_type    text not null,
    subject_id      uuid not null,
    body            jsonb not null,
    position        bigint unique,
    hash            text
);
create index audit_of_tenant on audit (tenant_id, id);
create index audit_of_subject on audit (subject_id, id);
create index audit_unsealed on audit (id) where position is null;
-- One row: the end of the chain. Its lock is the right to seal.
create table audit_chain (
    id              integer primary key,
    position        bigint not null,
    hash            text not null
);
insert into audit_chain (id, position, hash) values (1, 0, '');

alter table approvals enable row level security;
alter table approvals force row level security;
create policy tenant on approvals using (current_setting('reveille.tenant', true) in ('*', tenant_id));
alter table approval_links enable row level security;
alter table approval_links force row level security;
create policy tenant on approval_links using (current_setting('reveille.tenant', true) in ('*', tenant_id));
alter table grants enable row level security;
alter table grants force row level security;
create policy tenant on grants using (current_setting('reveille.tenant', true) in ('*', tenant_id));
alter table audit enable row level security;
alter table audit force row level security;
create policy tenant on audit using (current_setting('reveille.tenant', true) in ('*', tenant_id));

-- every fire writes its row here: with room beside it no index has to follow
alter table due set (fillfactor = 60);
