-- Vectors of facts, by which those of about the same meaning are found, where an endpoint that makes them is configured.
-- Same number, tables and columns as migrations/postgres/0055_fact_vectors.sql.

-- the space of the vector that the text of the fact has; empty: it has none
alter table facts add column embedded text not null default '';
-- an instance makes its vector until then, or has tried
alter table facts add column embed_after text;
-- how often that was begun since its text is the one that it is
alter table facts add column embed_claims integer not null default 0;
-- of all facts; whatever does not say so itself has no use for it
create index facts_to_embed on facts (embedded, tenant_id, id) where embedded >= '';

create table fact_vectors (
    tenant_id  text not null,
    fact_id    blob not null,
    -- the model, and the length of the vectors
    space      text not null,
    -- numbers of four bytes, the lowest byte first
    vector     blob not null,
    primary key (tenant_id, fact_id)
);
