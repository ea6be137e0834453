-- Memory: facts that agents know of a tenant, each with its earlier versions.
-- Same number, tables and columns as migrations/postgres/0052_facts.sql.

create table facts (
    id            blob primary key,
    tenant_id     text not null,
    -- a path such as `preferences/travel`; empty: none
    collection    text not null,
    -- every run is told it
    is_profile    integer not null,
    text          text not null,
    -- the text as it is searched
    folded        text not null,
    -- the same for texts that say the same in the same words
    identity      text not null,
    -- whether a person said it, or it comes from text from outside
    origin        text not null,
    run_id        blob,
    turn          integer,
    noted_by      text not null,
    -- the newest call that noted it: its repetition changes nothing
    call_key      text,
    version       integer not null,
    mentions      integer not null,
    created_at    text not null,
    noted_at      text not null,
    last_used_at  text not null
);
create unique index facts_by_identity on facts (tenant_id, identity);
create index facts_of_tenant on facts (tenant_id, id);
create index facts_of_profile on facts (tenant_id, id) where is_profile;
create index facts_by_call on facts (tenant_id, call_key) where call_key is not null;

create table fact_versions (
    fact_id       blob not null,
    version       integer not null,
    tenant_id     text not null,
    collection    text not null,
    text          text not null,
    origin        text not null,
    run_id        blob,
    turn          integer,
    noted_by      text not null,
    call_key      text,
    noted_at      text not null,
    replaced_at   text not null,
    primary key (fact_id, version)
);
create index fact_versions_by_call on fact_versions (tenant_id, call_key) where call_key is not null;

