-- What a delivery is about and why a task is disabled, as data, so that nothing is read out of keys, subjects and reasons.
-- Same number, tables and columns as migrations/postgres/0030_delivery_subjects.sql.

alter table deliveries add column subject_ref text;

-- From the key, and of a notice about a credential from the subject, as releases before this one wrote both.
update deliveries set subject_ref = json_object('type', 'questions', 'batch_id', substr(dedupe_key, 7, 36))
 where dedupe_key glob 'batch:????????-????-????-????-????????????:*';

update deliveries
   set subject_ref = json_object('type', 'digest', 'due_at', substr(dedupe_key, 8 + instr(substr(dedupe_key, 8), ':')))
 where dedupe_key glob 'digest:*:????-??-??T??:??:??.*Z';

update deliveries
   set subject_ref = json_object(
         'type', 'code',
         'channel', substr(dedupe_key, 6, instr(substr(dedupe_key, 6), ':') - 1),
         'id', substr(dedupe_key, 6 + instr(substr(dedupe_key, 6), ':')))
 where dedupe_key glob 'code:*:????????-????-????-????-????????????';

with notices as (
    select id, substr(dedupe_key, 8, instr(substr(dedupe_key, 8), ':') - 1) as notice,
           substr(dedupe_key, 8 + instr(substr(dedupe_key, 8), ':'), 36) as task_id
      from deliveries
     where dedupe_key glob 'notice:*:????????-????-????-????-????????????:*'
)
update deliveries set subject_ref = json_object('type', 'notice', 'notice', notices.notice, 'task_id', notices.task_id)
  from notices
 where deliveries.id = notices.id
   and notices.notice in ('failing', 'paused', 'disabled', 'recovered', 'poll_failing', 'poll_recovered', 'zone_rules',
                          'missing_field');

with notices as (
    select id, subject,
           case when dedupe_key glob 'notice:credential:????????-????-????-????-????????????:*'
                then substr(dedupe_key, 19, 36) end as about,
           case when subject glob 'Please connect *' then substr(subject, 16)
                when subject glob 'Bitte verbinden Sie *' then substr(subject, 21) end as to_connect
      from deliveries
     where dedupe_key glob 'notice:credential:*'
), issues as (
    select id, about,
           case when subject glob '* is refused' or subject glob '* wird nicht angenommen' then 'refused'
                when to_connect glob '* again' or to_connect glob '* noch einmal' then 'needs_consent'
                when to_connect is not null then 'missing' end as issue,
           case when subject glob '* is refused' then substr(subject, 1, length(subject) - 11)
                when subject glob '* wird nicht angenommen' then substr(subject, 1, length(subject) - 22)
                when to_connect glob '* again' then substr(to_connect, 1, length(to_connect) - 6)
                when to_connect glob '* noch einmal' then substr(to_connect, 1, length(to_connect) - 12)
                else to_connect end as credential
      from notices
), told as (
    select id, credential, issue, about,
           not exists (select 1 from tasks where tasks.id = unhex(replace(about, '-', '')))
           and exists (select 1 from credentials where credentials.id = unhex(replace(about, '-', ''))) as of_credential
      from issues
     where issue is not null and credential not glob '* *'
)
update deliveries
   set subject_ref = json_patch(
         json_object('type', 'credential', 'credential', told.credential, 'issue', told.issue),
         json_object('task_id', case when told.of_credential then null else told.about end,
                     'credential_id', case when told.of_credential then told.about end))
  from told
 where deliveries.id = told.id;

-- Of a disabled task the part for which it is: `trigger` or `action`. Null: the trigger.
alter table tasks add column faulty_part text;
update tasks set faulty_part = 'action' where status = 'disabled' and status_reason glob '/action/*';
