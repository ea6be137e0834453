-- The spine: tasks, what is due, runs, their queue and transcript, notifications, tokens.
-- Same number, tables and columns as migrations/sqlite/0001_spine.sql.

-- One row per task, wide and seldom written; firing touches `due` only.
create table tasks (
    id              uuid primary key,
    tenant_id       text not null,
    name            text not null,
    trigger_type    text not null,
    spec            jsonb not null,
    status          text not null,
    status_reason   text,
    epoch           bigint not null,
    version         bigint not null,
    anchor_at       timestamptz not null,
    active_since    timestamptz not null,
    zone_database   text not null,
    created_at      timestamptz not null,
    updated_at      timestamptz not null
);
create index tasks_of_tenant on tasks (tenant_id, id);

-- The only place of a task's next instant. Narrow, because every fire writes it.
create table due (
    task_id         uuid primary key,
    kind            text not null,
    next_at         timestamptz,
    nominal_at      timestamptz,
    epoch           bigint not null,
    claimed_until   timestamptz,
    fired           bigint not null default 0,
    run_count       bigint not null default 0
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
create index due_next on due (next_at) where next_at is not null;

-- The record: one row per fire. No index on state, so that changes of state stay HOT.
create table runs (
    id              uuid primary key,
    task_id         uuid,
    tenant_id       text not null,
    fire_key        text not null,
    trigger_type    text not null,
    scheduled_for   timestamptz not null,
    state           text not null,
    reason          text,
    blocked_by      uuid,
    attempt         integer not null default 0,
    crashes         integer not null default 0,
    infra_retries   integer not null default 0,
    ran_ms          bigint not null default 0,
    missed          jsonb,
    retry_of        uuid,
    event_ids       jsonb,
    input           jsonb,
    created_at      timestamptz not null,
    started_at      timestamptz,
    finished_at     timestamptz,
    output          text,
    error           jsonb,
    turns           bigint not null default 0,
    tool_calls      bigint not null default 0,
    input_tokens    bigint not null default 0,
    output_tokens   bigint not null default 0,
    cost_micros     bigint not null default 0,
    unique (task_id, fire_key)
) with (fillfactor = 80);
create index runs_of_tenant on runs (tenant_id, id);
create index runs_of_task on runs (task_id, id);

-- Runs that are ready, claimed or started. Finishing deletes the row; claims and rescue look only here.
create table queue (
    run_id          uuid primary key,
    task_id         uuid,
    tenant_id       text not null,
    epoch           bigint not null,
    run_at          timestamptz not null,
    priority        integer not null default 0,
    state           text not null,
    lease_token     bigint not null default 0,
    lease_until     timestamptz,
    worker          uuid,
    deadline_at     timestamptz,
    cancel_reason   text,
    -- the policy of this run alone; null: its task's
    overlap         text
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
create index queue_ready on queue (priority desc, run_at) where state = 'ready';
create index queue_next on queue (run_at) where state = 'ready';
create index queue_leases on queue (lease_until) where state <> 'ready';
create index queue_deadlines on queue (deadline_at) where deadline_at is not null;
create index queue_cancels on queue (worker) where cancel_reason is not null;
create index queue_of_task on queue (task_id);
-- Never reused: a token names one claim for ever.
create sequence lease_tokens;

-- Runs that wait for a person, a completion, or the run before them.
create table parked (
    run_id          uuid primary key,
    task_id         uuid,
    tenant_id       text not null,
    why             text not null,
    wake_at         timestamptz not null,
    overlap         text
);
create index parked_wake on parked (wake_at);
create index parked_of_task on parked (task_id, run_id);

-- At most one running run per task, for every overlap policy but `allow`.
create table slots (
    task_id         uuid primary key,
    run_id          uuid not null
);

-- The transcript, append only; it is the checkpoint, too.
create table turns (
    run_id          uuid not null,
    seq             bigint not null,
    turn            bigint not null,
    format          smallint not null,
    body            jsonb not null,
    turns           bigint not null default 0,
    tool_calls      bigint not null default 0,
    input_tokens    bigint not null default 0,
    output_tokens   bigint not null default 0,
    cost_micros     bigint not null default 0,
    duration_ms     bigint,
    created_at      timestamptz not null,
    primary key (run_id, seq)
);

-- Where a tenant is reached. Secrets in `body` are sealed by the vault.
create table recipients (
    tenant_id       text primary key,
    body            jsonb not null,
    version         bigint not null,
    updated_at      timestamptz not null
);

-- The outbox: one message on its way through one channel.
create table deliveries (
    id              uuid primary key,
    tenant_id       text not null,
    recipient       text not null,
    channel         text not null,
    dedupe_key      text not null,
    run_id          uuid,
    kind            text not null,
    subject         text,
    body            text,
    fallback        jsonb not null,
    state           text not null,
    attempts        integer not null default 0,
    next_at         timestamptz,
    lease_token     bigint not null default 0,
    last_error      text,
    provider_id     text,
    created_at      timestamptz not null,
    sent_at         timestamptz,
    delivered_at    timestamptz,
    unique (tenant_id, recipient, channel, dedupe_key)
);
create index deliveries_next on deliveries (next_at) where state = 'pending';
create index deliveries_of_tenant on deliveries (tenant_id, id);
create index deliveries_of_run on deliveries (run_id);

-- API tokens: only the hash is kept. No tenant: an admin token.
create table tokens (
    id              uuid primary key,
    tenant_id       text,
    name            text not null,
    hash            bytea not null unique,
    scopes          jsonb not null,
    created_at      timestamptz not null,
    expires_at      timestamptz,
    revoked_at      timestamptz,
    last_used_at    timestamptz
);

-- Answers of POST requests that named an Idempotency-Key, written with their effect.
create table idempotency (
    tenant_id       text not null,
    key             text not null,
    request_digest  bytea not null,
    status          integer not null,
    body            jsonb not null,
    expires_at      timestamptz not null,
    primary key (tenant_id, key)
);
create index idempotency_expiry on idempotency (expires_at);

-- The second wall between tenants. The engine's sessions are `*`, those of HTTP name their tenant in the transaction.
alter table tasks enable row level security;
alter table tasks force row level security;
create policy tenant on tasks using (current_setting('reveille.tenant', true) in ('*', tenant_id));
alter table recipients enable row level security;
alter table recipients force row level security;
create policy tenant on recipients using (current_setting('reveille.tenant', true) in ('*', tenant_id));
alter table deliveries enable row level security;
alter table deliveries force row level security;
create policy tenant on deliveries using (current_setting('reveille.tenant', true) in ('*', tenant_id));
alter table tokens enable row level security;
alter table tokens force row level security;
create policy tenant on tokens using (current_setting('reveille.tenant', true) in ('*', tenant_id));
alter table idempotency enable row level security;
alter table idempotency force row level security;
create policy tenant on idempotency using (current_setting('reveille.tenant', true) in ('*', tenant_id));
