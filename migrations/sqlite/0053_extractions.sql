-- Runs that have ended and from which facts are still to be noted.
-- Same number, tables and columns as migrations/postgres/0053_extractions.sql.

create table extractions (
    tenant_id  text not null,
    run_id     blob not null,
    -- when it may be claimed; of one that is claimed: when the claim has run out
    due_at     text not null,
    -- how often it was claimed; by this number a claim is known
    claims     integer not null,
    -- when the run ended
    queued_at  text not null,
    primary key (tenant_id, run_id)
);
create index extractions_due on extractions (due_at);
create index extractions_of_tenant on extractions (tenant_id, queued_at, run_id);
create index extractions_queued on extractions (queued_at);
