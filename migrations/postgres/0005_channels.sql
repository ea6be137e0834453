-- Telling people with measure: quiet hours, digests, budgets, verified addresses, alerts of tasks, open sessions.

alter table deliveries add column urgency text not null default 'normal';
-- waits for this digest, which tells it
alter table deliveries add column digest_id uuid;
-- why it was held: quiet_hours, budget
alter table deliveries add column held text;
create index deliveries_of_digest on deliveries (digest_id) where digest_id is not null;
-- those whose receipt is awaited
create index deliveries_sent on deliveries (sent_at) where state = 'sent';

-- How often a recipient was interrupted on a day of its own calendar.
create table interruptions (
    tenant_id       text not null,
    day             text not null,
    sent            bigint not null,
    primary key (tenant_id, day)
);

-- Codes that prove an address; the code itself is in the message alone.
create table verifications (
    tenant_id       text not null,
    channel         text not null,
    -- of the address that it was sent to
    address_hash    bytea not null,
    code_hash       bytea not null,
    tries           bigint not null,
    expires_at      timestamptz not null,
    primary key (tenant_id, channel)
);

-- What a task told last, and whether it is known to fail.
create table task_told (
    task_id         uuid primary key,
    tenant_id       text not null,
    -- of the last output that was told
    output_hash     bytea,
    -- the cause of the alert that is open; its failures, and since when
    alert_code      text,
    alert_count     bigint not null default 0,
    alert_since     timestamptz,
    alert_told_at   timestamptz
);

-- Messages for sessions that are open somewhere. Taken by one of them, or the channel gives up.
create table live_messages (
    id              uuid primary key,
    tenant_id       text not null,
    body            jsonb not null,
    created_at      timestamptz not null,
    taken_at        timestamptz
);
create index live_messages_of_tenant on live_messages (tenant_id, created_at);
create index live_messages_created on live_messages (created_at);

alter table interruptions enable row level security;
alter table interruptions force row level security;
create policy tenant on interruptions using (current_setting('reveille.tenant', true) in ('*', tenant_id));
alter table verifications enable row level security;
alter table verifications force row level security;
create policy tenant on verifications using (current_setting('reveille.tenant', true) in ('*', tenant_id));
alter table task_told enable row level security;
alter table task_told force row level security;
create policy tenant on task_told using (current_setting('reveille.tenant', true) in ('*', tenant_id));
alter table live_messages enable row level security;
alter table live_messages force row level security;
create policy tenant on live_messages using (current_setting('reveille.tenant', true) in ('*', tenant_id));
