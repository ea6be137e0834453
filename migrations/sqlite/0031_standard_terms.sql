-- Columns, tables and stored fields get the standard words of their field.
-- Same number, tables and columns as migrations/postgres/0031_standard_terms.sql.

alter table parked rename column why to reason;
drop index parked_for_people;
create index parked_for_approval on parked (tenant_id, wake_at) where reason = 'approval';

-- Fires that count against the task's limit.
alter table due rename column fired to fire_count;
drop index due_turns;
create index due_of_tenant on due (tenant_id, next_at) where kind = 'schedule' and next_at is not null;
drop index queue_turns;
create index queue_of_tenant on queue (tenant_id, priority desc, run_at) where state = 'ready';
drop index event_queue_turns;
create index event_queue_of_tenant on event_queue (tenant_id, seq);

-- The rule that holds the message: quiet_hours, budget.
alter table deliveries rename column held to hold_reason;
-- An attempt before may have delivered it, and nobody knows.
alter table deliveries rename column doubtful to maybe_delivered;
drop index deliveries_lines;
create index deliveries_pending_of_tenant on deliveries (channel, tenant_id, next_at)
    where state = 'pending' and next_at is not null;

alter table windows rename to event_windows;
drop index windows_close;
create index event_windows_close on event_windows (closes_at) where closes_at is not null;

alter table task_told rename to task_alerts;
-- The digest of the steps of a pipeline whose owner was told that they look for a field in vain.
alter table task_alerts rename column missing to missing_field_digest;

-- The assistant's message as its provider wrote it.
alter table turns rename column echo to provider_message;

-- Everything by which the voter is known, as a list of texts.
alter table approval_votes rename column marks to identities;
alter table approvals rename column began_at to execution_started_at;
-- An index of a shard that is older than this is read anew.
alter table event_index rename column forgotten to pruned_version;
-- Only for sessions that may decide.
alter table live_messages rename column decides to has_approval_link;
alter table live_messages rename column taken_at to claimed_at;
alter table verifications rename column tries to attempts;
-- When all that earlier releases had planned was planned anew.
alter table zone_releases rename column planned_at to replanned_at;

update tasks
   set spec = json_set(json_remove(spec, '$.trigger.waiting_counts'),
                       '$.trigger.overlap_counts_waiting', json(spec -> '$.trigger.waiting_counts'))
 where case when json_valid(spec) then json_type(spec, '$.trigger.waiting_counts') end is not null;
update tasks
   set spec = json_set(json_remove(spec, '$.trigger.hold'), '$.trigger.buffer_while_paused', json(spec -> '$.trigger.hold'))
 where case when json_valid(spec) then json_type(spec, '$.trigger.hold') end is not null;
update event_windows set kind = 'buffer' where kind = 'hold';

update task_alerts
   set alerts = (select json_group_object(
                          key,
                          case when type = 'object' and value ->> '$.told_at' is not null
                               then json_set(json_remove(value, '$.told_at'), '$.notified_at', value ->> '$.told_at')
                               when type in ('object', 'array') then json(value)
                               else value end)
                   from json_each(alerts))
 where case when json_valid(alerts) then json_type(alerts) end = 'object';

-- A step's outcome matters to runs that are not over, and is read with runs that failed for it.
update turns
   set body = json_set(json_remove(body, '$.outcome.error.lack'),
                       '$.outcome.error.credential_issue', json(body -> '$.outcome.error.lack'))
 where run_id in (select id from runs
                   where error like '%"lack"%' or state not in ('succeeded', 'failed', 'cancelled', 'expired', 'skipped'))
   and case when json_valid(body) then json_type(body, '$.outcome.error.lack') end is not null;
update runs
   set error = json_set(json_remove(error, '$.lack'), '$.credential_issue', json(error -> '$.lack'))
 where error like '%"lack"%' and case when json_valid(error) then json_type(error, '$.lack') end is not null;
update runs set reason = 'buffer_full' where reason = 'hold_full';
