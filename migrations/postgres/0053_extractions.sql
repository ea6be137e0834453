-- Runs that have ended and from which facts are still to be noted.
-- Same number, tables and columns as migrations/sqlite/0053_extractions.sql.

create table extractions (
    tenant_id  text not null,
    run_id     uuid not null,
    -- when it may be claimed; of one that is claimed: when the claim has run out
    due_at     timestamptz not null,
    -- how often it was claimed; by this number a claim is known
    claims     bigint not null,
    -- when the run ended
    queued_at  timestamptz not null,
    primary key (tenant_id, run_id)
);
create index extractions_due on extractions (due_at);
create index extractions_of_tenant on extractions (tenant_id, queued_at, run_id);
create index extractions_queued on extractions (queued_at);

alter table extractions enable row level security;
alter table extractions force row level security;
create policy tenant on extractions using (current_setting('reveille.tenant', true) in ('*', tenant_id));
