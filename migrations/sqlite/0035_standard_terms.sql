-- Stored fields that still had words of their own get the standard ones.
-- Same number, tables and columns as migrations/postgres/0035_standard_terms.sql.

-- For how long executors have worked on the run, all attempts together.
alter table runs rename column ran_ms to execution_ms;

-- For how long a condition was seen to be true; whether it has fired and was not reset since; who was notified.
update condition_state
   set body = json_set(json_remove(body, '$.held_ms', '$.spent'),
                       '$.true_for_ms', json(body -> '$.held_ms'), '$.latched', json(body -> '$.spent'))
 where case when json_valid(body) then json_type(body, '$.held_ms') is not null and json_type(body, '$.spent') is not null end;
update condition_state
   set body = json_set(json_remove(body, '$.missing_told'), '$.missing_notified', json(body -> '$.missing_told'))
 where case when json_valid(body) then json_type(body, '$.missing_told') end is not null;
update condition_state
   set body = json_set(json_remove(body, '$.failing.told'), '$.failing.notified', json(body -> '$.failing.told'))
 where case when json_valid(body) then json_type(body, '$.failing.told') end is not null;

update approvals
   set proposal = json_set(json_remove(proposal, '$.barred'), '$.excluded_approver', json(proposal -> '$.barred'))
 where case when json_valid(proposal) then json_type(proposal, '$.barred') end is not null;
update approvals
   set proposal = json_set(json_remove(proposal, '$.why'), '$.reason_codes', (
                      select json_group_array(case value ->> '$.kind' when 'held' then json('{"kind":"undo_window"}')
                                                                      else json(value) end)
                        from json_each(proposal, '$.why')))
 where case when json_valid(proposal) then json_type(proposal, '$.why') end = 'array';
