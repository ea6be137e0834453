-- Stored fields that still had words of their own get the standard ones.
-- Same number, tables and columns as migrations/sqlite/0035_standard_terms.sql.
--
-- Names that are gone can't be read by an instance of a release before this one: all of those are stopped first.

-- For how long executors have worked on the run, all attempts together.
alter table runs rename column ran_ms to execution_ms;

-- For how long a condition was seen to be true; whether it has fired and was not reset since; who was notified.
update condition_state
   set body = (body - 'held_ms' - 'spent')
              || jsonb_build_object('true_for_ms', body -> 'held_ms', 'latched', body -> 'spent')
 where jsonb_typeof(body) = 'object' and body -> 'held_ms' is not null and body -> 'spent' is not null;
update condition_state
   set body = (body - 'missing_told') || jsonb_build_object('missing_notified', body -> 'missing_told')
 where jsonb_typeof(body) = 'object' and body -> 'missing_told' is not null;
update condition_state
   set body = jsonb_set(body #- '{failing,told}', '{failing,notified}', body #> '{failing,told}')
 where body #> '{failing,told}' is not null;

-- Row-level security would hide the rows from whoever owns them.
select set_config('reveille.tenant', '*', true);
update approvals
   set proposal = (proposal - 'barred') || jsonb_build_object('excluded_approver', proposal -> 'barred')
 where jsonb_typeof(proposal) = 'object' and proposal -> 'barred' is not null;
update approvals
   set proposal = (proposal - 'why')
                  || jsonb_build_object('reason_codes', (
                         select coalesce(jsonb_agg(case code ->> 'kind' when 'held' then '{"kind":"undo_window"}'::jsonb
                                                                        else code end
                                                   order by n), '[]')
                           from jsonb_array_elements(proposal -> 'why') with ordinality as listed (code, n)))
 where jsonb_typeof(proposal -> 'why') = 'array';
