-- Telling people with measure: quiet hours, digests, budgets, verified addresses, alerts of tasks, open sessions.

alter table deliveries add column urgency text not null default 'normal';
-- waits for this digest, which tells it
alter table deliveries add column digest_id blob;
-- why it was held: quiet_hours, budget
alter table deliveries add column held text;
create index deliveries_of_digest on deliveries (digest_id) where digest_id is not null;
-- those whose receipt is awaited
create index deliveries_sent on deliveries (sent_at) where state = 'sent';

-- How often a recipient was interrupted on a day of its own calendar.
create table interruptions (
    tenant_id       text not null,
    day             text not null,
    sent            integer not null,
    primary key (tenant_id, day)
);

-- Codes that prove an address; the code itself is in the message alone.
create table verifications (
    tenant_id       text not null,
    channel         text not null,
    -- of the address that it was sent to
    address_hash    blob not null,
    code_hash       blob not null,
    tries           integer not null,
    expires_at      text not null,
    primary key (tenant_id, channel)
);

-- What a task told last, and whether it is known to fail.
create table task_told (
    task_id         blob primary key,
    tenant_id       text not null,
    -- of the last output that was told
    output_hash     blob,
    -- the cause of the alert that is open; its failures, and since when
    alert_code      text,
    alert_count     integer not null default 0,
    alert_since     text,
    alert_told_at   text
);

-- Messages for sessions that are open somewhere. Taken by one of them, or the channel gives up.
create table live_messages (
    id              blob primary key,
    tenant_id       text not null,
    body            text not null,
    created_at      text not null,
    taken_at        text
);
create index live_messages_of_tenant on live_messages (tenant_id, created_at);
create index live_messages_created on live_messages (created_at);
