-- The spine: tasks, what is due, runs, their queue and transcript, notifications, tokens.
-- Same number, tables and columns as migrations/postgres/0001_spine.sql.

-- One row per task, wide and seldom written; firing touches `due` only.
create table tasks (
    id              blob primary key,
    tenant_id       text not null,
    name            text not null,
    trigger_type    text not null,
    spec            text not null,
    status          text not null,
    status_reason   text,
    epoch           integer not null,
    version         integer not null,
    anchor_at       text not null,
    active_since    text not null,
    zone_database   text not null,
    created_at      text not null,
    updated_at      text not null
);
create index tasks_of_tenant on tasks (tenant_id, id);

-- The only place of a task's next instant. Narrow, because every fire writes it.
create table due (
    task_id         blob primary key,
    kind            text not null,
    next_at         text,
    nominal_at      text,
    epoch           integer not null,
    claimed_until   text,
    fired           integer not null default 0,
    run_count       integer not null default 0
);
create index due_next on due (next_at) where next_at is not null;

-- The record: one row per fire.
create table runs (
    id              blob primary key,
    task_id         blob,
    tenant_id       text not null,
    fire_key        text not null,
    trigger_type    text not null,
    scheduled_for   text not null,
    state           text not null,
    reason          text,
    blocked_by      blob,
    attempt         integer not null default 0,
    crashes         integer not null default 0,
    infra_retries   integer not null default 0,
    ran_ms          integer not null default 0,
    missed          text,
    retry_of        blob,
    event_ids       text,
    input           text,
    created_at      text not null,
    started_at      text,
    finished_at     text,
    output          text,
    error           text,
    turns           integer not null default 0,
    tool_calls      integer not null default 0,
    input_tokens    integer not null default 0,
    output_tokens   integer not null default 0,
    cost_micros     integer not null default 0,
    unique (task_id, fire_key)
);
create index runs_of_tenant on runs (tenant_id, id);
create index runs_of_task on runs (task_id, id);

-- Runs that are ready, claimed or started. Finishing deletes the row; claims and rescue look only here.
create table queue (
    run_id          blob primary key,
    task_id         blob,
    tenant_id       text not null,
    epoch           integer not null,
    run_at          text not null,
    priority        integer not null default 0,
    state           text not null,
    lease_token     integer not null default 0,
    lease_until     text,
    worker          blob,
    deadline_at     text,
    cancel_reason   text,
    -- the policy of this run alone; null: its task's
    overlap         text
);
create index queue_ready on queue (priority desc, run_at) where state = 'ready';
create index queue_next on queue (run_at) where state = 'ready';
create index queue_leases on queue (lease_until) where state <> 'ready';
create index queue_deadlines on queue (deadline_at) where deadline_at is not null;
create index queue_cancels on queue (worker) where cancel_reason is not null;
create index queue_of_task on queue (task_id);
-- Never reused: a token names one claim for ever.
create table lease_tokens (
    last            integer not null
);
insert into lease_tokens (last) values (0);

-- Runs that wait for a person, a completion, or the run before them.
create table parked (
    run_id          blob primary key,
    task_id         blob,
    tenant_id       text not null,
    why             text not null,
    wake_at         text not null,
    overlap         text
);
create index parked_wake on parked (wake_at);
create index parked_of_task on parked (task_id, run_id);

-- At most one running run per task, for every overlap policy but `allow`.
create table slots (
    task_id         blob primary key,
    run_id          blob not null
);

-- The transcript, append only; it is the checkpoint, too.
create table turns (
    run_id          blob not null,
    seq             integer not null,
    turn            integer not null,
    format          integer not null,
    body            text not null,
    turns           integer not null default 0,
    tool_calls      integer not null default 0,
    input_tokens    integer not null default 0,
    output_tokens   integer not null default 0,
    cost_micros     integer not null default 0,
    duration_ms     integer,
    created_at      text not null,
    primary key (run_id, seq)
);

-- Where a tenant is reached. Secrets in `body` are sealed by the vault.
create table recipients (
    tenant_id       text primary key,
    body            text not null,
    version         integer not null,
    updated_at      text not null
);

-- The outbox: one message on its way through one channel.
create table deliveries (
    id              blob primary key,
    tenant_id       text not null,
    recipient       text not null,
    channel         text not null,
    dedupe_key      text not null,
    run_id          blob,
    kind            text not null,
    subject         text,
    body            text,
    fallback        text not null,
    state           text not null,
    attempts        integer not null default 0,
    next_at         text,
    lease_token     integer not null default 0,
    last_error      text,
    provider_id     text,
    created_at      text not null,
    sent_at         text,
    delivered_at    text,
    unique (tenant_id, recipient, channel, dedupe_key)
);
create index deliveries_next on deliveries (next_at) where state = 'pending';
create index deliveries_of_tenant on deliveries (tenant_id, id);
create index deliveries_of_run on deliveries (run_id);

-- API tokens: only the hash is kept. No tenant: an admin token.
create table tokens (
    id              blob primary key,
    tenant_id       text,
    name            text not null,
    hash            blob not null unique,
    scopes          text not null,
    created_at      text not null,
    expires_at      text,
    revoked_at      text,
    last_used_at    text
);

-- Answers of POST requests that named an Idempotency-Key, written with their effect.
create table idempotency (
    tenant_id       text not null,
    key             text not null,
    request_digest  blob not null,
    status          integer not null,
    body            text not null,
    expires_at      text not null,
    primary key (tenant_id, key)
);
create index idempotency_expiry on idempotency (expires_at);
