-- What a delivery is about and why a task is disabled, as data, so that nothing is read out of keys, subjects and reasons.
-- Same number, tables and columns as migrations/sqlite/0030_delivery_subjects.sql.

alter table deliveries add column subject_ref jsonb;

-- From the key, and of a notice about a credential from the subject, as releases before this one wrote both.
create function subject_ref_of_key(key text, subject text) returns jsonb language plpgsql stable as $$
declare
    uuid_form constant text := '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$';
    parts constant text[] := string_to_array(key, ':');
    digest_at constant text := substring(key from '^digest:[^:]*:(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z)$');
    to_connect constant text[] := regexp_match(subject, '^(?:Please connect|Bitte verbinden Sie) (\S+)( again| noch einmal)?$');
    refused constant text := substring(subject from '^(\S+) (?:is refused|wird nicht angenommen)$');
    is_uuid constant boolean := coalesce(parts[3] ~ uuid_form, false);
    about uuid;
    of_credential boolean;
begin
    if parts[1] = 'batch' and parts[2] ~ uuid_form then
        return jsonb_build_object('type', 'questions', 'batch_id', parts[2]);
    elsif digest_at is not null then
        return jsonb_build_object('type', 'digest', 'due_at', digest_at);
    elsif parts[1] = 'code' and is_uuid then
        return jsonb_build_object('type', 'code', 'channel', parts[2], 'id', parts[3]);
    elsif parts[1] <> 'notice' then
        return null;
    elsif parts[2] = 'credential' and coalesce(to_connect[1], refused) is not null then
        if is_uuid then
            about := parts[3]::uuid;
        end if;
        of_credential := not exists (select from tasks where id = about) and exists (select from credentials where id = about);
        return jsonb_strip_nulls(jsonb_build_object(
            'type', 'credential',
            'credential', coalesce(to_connect[1], refused),
            'issue', case when refused is not null then 'refused'
                          when to_connect[2] is not null then 'needs_consent'
                          else 'missing' end,
            'task_id', case when is_uuid and not of_credential then parts[3] end,
            'credential_id', case when of_credential then parts[3] end));
    elsif is_uuid and parts[2] in ('failing', 'paused', 'disabled', 'recovered', 'poll_failing', 'poll_recovered', 'zone_rules',
                                   'missing_field') then
        return jsonb_build_object('type', 'notice', 'notice', parts[2], 'task_id', parts[3]);
    end if;
    return null;
end
$$;

-- Row-level security would hide the rows from whoever owns them.
select set_config('reveille.tenant', '*', true);
update deliveries set subject_ref = subject_ref_of_key(dedupe_key, subject)
 where kind not in ('result', 'failure') and subject_ref_of_key(dedupe_key, subject) is not null;

-- An instance of a release before this one goes on for a while and writes no such column.
create function fill_subject_ref() returns trigger language plpgsql as $$
begin
    new.subject_ref := subject_ref_of_key(new.dedupe_key, new.subject);
    return new;
end
$$;
create trigger subject_ref_of_older_instance before insert on deliveries for each row
    when (new.subject_ref is null and new.kind in ('notice', 'message', 'ask', 'reminder', 'digest', 'code'))
    execute function fill_subject_ref();

-- Of a disabled task the part for which it is: `trigger` or `action`. Null: the trigger.
alter table tasks add column faulty_part text;
update tasks set faulty_part = 'action' where status = 'disabled' and starts_with(status_reason, '/action/');

-- An instance of a release before this one tells the action by the reason alone.
create function fill_faulty_part() returns trigger language plpgsql as $$
begin
    new.faulty_part := case when new.status = 'disabled' then 'action' end;
    return new;
end
$$;
create trigger faulty_part_of_older_instance before update of status_reason on tasks for each row
    when (new.faulty_part is not distinct from old.faulty_part
          and (new.faulty_part is not null and new.status <> 'disabled'
               or new.faulty_part is null and new.status = 'disabled' and starts_with(new.status_reason, '/action/')))
    execute function fill_faulty_part();
