-- The oldest runs that have ended, of some, with what belongs to them, in one statement: what it sees is what it deletes. Runs
-- that another instance is about to forget are left to it. Entries of transcripts name no tenant: what they count is given
-- back here, where their runs are still known. $3 bounds how many rows go: the first run goes in any case.
with ended as materialized (
    select id from runs
     where {which} and state in ('succeeded', 'failed', 'cancelled', 'expired', 'skipped')
     order by id limit $2
       for update skip locked
), weighed as (
    select id, row_number() over (order by id) as place,
           sum(1 + (select count(*) from turns t where t.run_id = ended.id)
                 + (select count(*) from deliveries d where d.run_id = ended.id)) over (order by id) as weight
      from ended
), old as materialized (
    select id from weighed where place = 1 or weight <= $3
), asked as materialized (
    select a.id, a.batch_id from approvals a join old on old.id = a.run_id
), no_turns as (
    delete from turns where run_id in (select id from old) returning run_id, stored_bytes
), uncounted as (
    -- as they were when they were deleted: older entries may be counted meanwhile
    insert into stored_byte_changes (tenant_id, bytes)
    select r.tenant_id, -sum(t.stored_bytes)::bigint from no_turns t join runs r on r.id = t.run_id
     where t.stored_bytes > 0
     group by r.tenant_id
), no_votes as (
    delete from approval_votes where approval_id in (select id from asked)
), no_links as (
    delete from approval_links where batch_id in (select batch_id from asked)
), no_approvals as (
    delete from approvals where id in (select id from asked)
), no_uses as (
    delete from grant_uses where run_id in (select id from old)
), no_deliveries as (
    delete from deliveries where run_id in (select id from old){kept}
), gone as (
    delete from runs where id in (select id from old) returning id
)
select count(*) from gone
