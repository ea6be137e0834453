-- Events and conditions: the embedded bus, matching, polls, and what pipelines keep.
-- Same number, tables and columns as migrations/sqlite/0002_events.sql.

-- What made the task fire: the event with its data, or the value that a poll saw. Kept with the run, because it
-- outlives the bus. Null: a schedule.
alter table runs add column cause jsonb;

-- Polls wait here beside schedules, and each service looks for its own.
drop index due_next;
create index due_next on due (kind, next_at) where next_at is not null;

-- Every fire of an event counts in its task's row; with room in the page no index has to follow.
alter table due set (fillfactor = 70);

-- The embedded bus: the log of what was published, once by `event_key`.
create table events (
    seq             bigint generated always as identity primary key,
    event_key       text not null unique,
    tenant_id       text not null,
    source          text not null,
    type            text not null,
    body            jsonb not null,
    created_at      timestamptz not null
);
create index events_of_tenant on events (tenant_id, seq);
create index events_age on events (created_at);

-- Entries of the embedded bus that nobody has acknowledged. A consumer leases them; acknowledging deletes the row.
create table event_queue (
    seq             bigint primary key,
    lease_until     timestamptz,
    consumer        uuid,
    deliveries      integer not null default 0
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
create index event_queue_leases on event_queue (lease_until) where lease_until is not null;

-- Entries of the embedded bus that could not be handled. No tenant: it could not be read.
create table dead_letters (
    id              uuid primary key,
    tenant_id       text,
    source          text,
    type            text,
    entry           text not null unique,
    body            text not null,
    error           text not null,
    deliveries      integer not null,
    created_at      timestamptz not null
);
create index dead_letters_of_tenant on dead_letters (tenant_id, id);

-- Events that were taken while Redis was away, to be forwarded in this order (`bus.outbox`).
create table bus_outbox (
    seq             bigint generated always as identity primary key,
    tenant_id       text not null,
    body            jsonb not null,
    created_at      timestamptz not null
);

-- The version of the index of event tasks, a row per shard of tenants: each write to an event task bumps its own.
-- What was forgotten is gone from `event_tasks` up to `forgotten`: who knows less reads the shard anew.
create table event_index (
    shard           integer primary key,
    version         bigint not null,
    forgotten       bigint not null default 0
);

-- The index of event tasks, by the version of its shard that last changed the row. Deleted and ended tasks stay for a
-- while as rows that are not live, so that every instance hears of them.
create table event_tasks (
    task_id         uuid primary key,
    shard           integer not null,
    version         bigint not null,
    live            boolean not null,
    changed_at      timestamptz not null
);
create index event_tasks_changes on event_tasks (shard, version);

-- Open windows of `debounce` and `batch`, and what a paused task with `hold` has collected (`kind`).
create table windows (
    id              uuid primary key,
    task_id         uuid not null,
    tenant_id       text not null,
    kind            text not null,
    key             text not null,
    opened_at       timestamptz not null,
    closes_at       timestamptz,
    events          integer not null,
    bytes           bigint not null default 0,
    -- held events that are released: `run` or `drop`
    release         text,
    unique (task_id, kind, key)
);
create index windows_close on windows (closes_at) where closes_at is not null;

-- The events of windows. Rows stay as long as their run, so that an event that comes again is known.
create table window_events (
    task_id         uuid not null,
    event_key       text not null,
    window_id       uuid not null,
    seq             bigint not null,
    -- null once its run has it
    body            jsonb,
    created_at      timestamptz not null,
    primary key (task_id, event_key)
);
create index window_events_of_window on window_events (window_id, seq);
create index window_events_age on window_events (created_at);

-- `throttle`: the theoretical arrival time of each key (GCRA).
create table throttles (
    task_id         uuid not null,
    key             text not null,
    arrival_at      timestamptz not null,
    primary key (task_id, key)
);
create index throttles_age on throttles (arrival_at);

-- `dedup`: which event had a key first, until the window is over.
create table dedups (
    task_id         uuid not null,
    key             text not null,
    event_key       text not null,
    expires_at      timestamptz not null,
    primary key (task_id, key)
);
create index dedups_age on dedups (expires_at);

-- What a condition task knows, moved on with each poll and with the run that it caused.
create table condition_state (
    task_id         uuid primary key,
    version         bigint not null,
    -- fires counted so far: their keys are never used twice, whatever becomes of the body
    edges           bigint not null,
    body            jsonb not null,
    updated_at      timestamptz not null
);

-- What pipelines of a task keep between runs (`store`).
create table task_state (
    task_id         uuid not null,
    tenant_id       text not null,
    name            text not null,
    value           jsonb not null,
    updated_at      timestamptz not null,
    primary key (task_id, name)
);

alter table events enable row level security;
alter table events force row level security;
create policy tenant on events using (current_setting('reveille.tenant', true) in ('*', tenant_id));
alter table dead_letters enable row level security;
alter table dead_letters force row level security;
create policy tenant on dead_letters using (current_setting('reveille.tenant', true) in ('*', tenant_id));
alter table bus_outbox enable row level security;
alter table bus_outbox force row level security;
create policy tenant on bus_outbox using (current_setting('reveille.tenant', true) in ('*', tenant_id));
alter table windows enable row level security;
alter table windows force row level security;
create policy tenant on windows using (current_setting('reveille.tenant', true) in ('*', tenant_id));
alter table task_state enable row level security;
alter table task_state force row level security;
create policy tenant on task_state using (current_setting('reveille.tenant', true) in ('*', tenant_id));
