-- Usage: what runs have used of models and tools, by tenant, day, task and name, kept longer than the runs.
-- Same number, tables and columns as migrations/sqlite/0048_usage.sql.

-- `kind` is `model`, with the name of the model in the settings, or `tool`, with the name of the tool; `unknown` stands for a
-- model that nobody named, and for tools that are not there. `calls` are turns of models, and calls of tools. A run without a task
-- has a `task_id` of all zeros. Money is in micro-dollars. The day comes first in the key, by which old ones are forgotten.
create table usage_days (
    tenant_id          text not null,
    day                date not null,
    task_id            uuid not null,
    kind               text not null,
    name               text not null,
    calls              bigint not null,
    failures           bigint not null,
    duration_ms        bigint not null,
    input_tokens       bigint not null,
    output_tokens      bigint not null,
    cache_read_tokens  bigint not null,
    cache_write_tokens bigint not null,
    reasoning_tokens   bigint not null,
    cost_micros        bigint not null,
    result_chars       bigint not null,
    primary key (day, tenant_id, task_id, kind, name)
);
create index usage_days_of_tenant on usage_days (tenant_id, day);

-- The record of the call of a tool, beside its result: name, arguments in short, duration, success, length, caller.
alter table turns add column tool_record jsonb;

-- The first entry of the run's transcript that `usage_days` does not have. It is written where a run goes on after an execution
-- has ended: nobody reads it once the run is over.
alter table runs add column usage_seq bigint not null default 0;

alter table usage_days enable row level security;
alter table usage_days force row level security;
create policy tenant on usage_days using (current_setting('reveille.tenant', true) in ('*', tenant_id));
