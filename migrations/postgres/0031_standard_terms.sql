-- Columns, tables and stored fields get the standard words of their field.
-- Same number, tables and columns as migrations/sqlite/0031_standard_terms.sql.
--
-- Names that are gone can't be read by an instance of a release before this one: all of those are stopped first.

alter table parked rename column why to reason;
alter index parked_for_people rename to parked_for_approval;

-- Fires that count against the task's limit.
alter table due rename column fired to fire_count;
alter index due_turns rename to due_of_tenant;
alter index queue_turns rename to queue_of_tenant;
alter index event_queue_turns rename to event_queue_of_tenant;

-- The rule that holds the message: quiet_hours, budget.
alter table deliveries rename column held to hold_reason;
-- An attempt before may have delivered it, and nobody knows.
alter table deliveries rename column doubtful to maybe_delivered;
alter index deliveries_lines rename to deliveries_pending_of_tenant;

alter table windows rename to event_windows;
alter index windows_pkey rename to event_windows_pkey;
alter index windows_task_id_kind_key_key rename to event_windows_task_id_kind_key_key;
alter index windows_close rename to event_windows_close;

alter table task_told rename to task_alerts;
alter index task_told_pkey rename to task_alerts_pkey;
-- The digest of the steps of a pipeline whose owner was told that they look for a field in vain.
alter table task_alerts rename column missing to missing_field_digest;

-- The assistant's message as its provider wrote it.
alter table turns rename column echo to provider_message;
create or replace function measure_turns() returns trigger language plpgsql as $$
begin
    new.stored_bytes := coalesce(pg_column_size(new.body), 0) + coalesce(pg_column_size(new.provider_message), 0);
    return new;
end
$$;

-- Everything by which the voter is known, as a list of texts.
alter table approval_votes rename column marks to identities;
alter table approvals rename column began_at to execution_started_at;
-- An instance whose index of a shard is older than this reads the shard anew.
alter table event_index rename column forgotten to pruned_version;
-- Only for sessions that may decide.
alter table live_messages rename column decides to has_approval_link;
alter table live_messages rename column taken_at to claimed_at;
alter table verifications rename column tries to attempts;
-- When all that earlier releases had planned was planned anew.
alter table zone_releases rename column planned_at to replanned_at;

-- Row-level security would hide the rows from whoever owns them.
select set_config('reveille.tenant', '*', true);

update tasks
   set spec = jsonb_set(spec #- '{trigger,waiting_counts}', '{trigger,overlap_counts_waiting}', spec #> '{trigger,waiting_counts}')
 where spec #> '{trigger,waiting_counts}' is not null;
update tasks
   set spec = jsonb_set(spec #- '{trigger,hold}', '{trigger,buffer_while_paused}', spec #> '{trigger,hold}')
 where spec #> '{trigger,hold}' is not null;
update event_windows set kind = 'buffer' where kind = 'hold';

update task_alerts
   set alerts = (select jsonb_object_agg(
                          cause,
                          case when alert -> 'told_at' is null then alert
                               else alert - 'told_at' || jsonb_build_object('notified_at', alert -> 'told_at') end)
                   from jsonb_each(alerts) as listed (cause, alert))
 where jsonb_typeof(alerts) = 'object' and alerts <> '{}';

-- A step's outcome matters to runs that are not over, and is read with runs that failed for it.
update turns t
   set body = jsonb_set(t.body #- '{outcome,error,lack}', '{outcome,error,credential_issue}', t.body #> '{outcome,error,lack}')
  from runs r
 where r.id = t.run_id
   and (r.error -> 'lack' is not null or r.state not in ('succeeded', 'failed', 'cancelled', 'expired', 'skipped'))
   and t.body #> '{outcome,error,lack}' is not null;
update runs
   set reason = case when reason = 'hold_full' then 'buffer_full' else reason end,
       error = case when error -> 'lack' is null then error
                    else jsonb_set(error - 'lack', '{credential_issue}', error -> 'lack') end
 where reason = 'hold_full' or error -> 'lack' is not null;
