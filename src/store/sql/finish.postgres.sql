-- Steps of the statement that finishes runs: only whose lease still stands is taken; the row leaves the queue (or waits
-- there again, or among the parked ones), the slot is freed unless it waits and keeps it, the record is written.
-- Everything that is known of an end goes along from where its row is locked, so that nothing has to be joined to it
-- again. A column of a batch costs about half a microsecond per row, so what few ends have stands in one document
-- (`rare`), which is null for the others.
-- All steps see the database as it was when the statement began. A run that is parked behind another one writes the row
-- of the slot, as it is (`store/runs/overlap.rs`). Where the version of a slot that is locked is not the one that is
-- seen, it is `overtaken`: a run may be parked behind it that is not seen.
-- By `gate` all is written, or nothing.
with held as materialized (
  select *,
         listed.run_at is null
         and (select true from approvals a
               where a.run_id = any (array[listed.run_id])
                 and (a.status = 'pending'
                      or (a.status in ('approved', 'edited') and a.replaced_by is null and a.execution_started_at is null
                          and a.hold_until > $14))
               limit 1) is not null as has_questions,
         listed.run_at is null
         and (select true from parked p
               where p.task_id = any (array[listed.task_id]) and p.reason = 'overlap'
               limit 1) is not null as is_waited_for
    from (select q.run_id, f.lease_token, q.task_id, q.tenant_id, q.cancel_reason, q.overlap, q.state as was, f.state,
                 f.reason, f.output, f.error, f.turns, f.tool_calls, f.input_tokens, f.output_tokens, f.cost_micros,
                 f.execution_ms, f.keeps_slot,
                 (f.rare ->> 'run_at')::timestamptz as run_at,
                 coalesce((f.rare ->> 'attempts_back')::int, 0) as attempts_back,
                 coalesce((f.rare ->> 'crashes')::int, 0) as crashes,
                 coalesce((f.rare ->> 'infra_retries')::int, 0) as infra_retries, f.rare ->> 'finish' as finish,
                 (f.rare ->> 'park_at')::timestamptz as park_at, f.rare ->> 'park_reason' as park_reason,
                 nullif(f.rare -> 'park_turns', 'null') as park_turns
            from unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::jsonb[], $7::bigint[],
                        $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bool[],
                        $15::jsonb[])
                 as f (run_id, lease_token, state, reason, output, error, turns, tool_calls, input_tokens, output_tokens,
                       cost_micros, execution_ms, keeps_slot, rare)
            join queue q on q.run_id = any (array[f.run_id]) and q.lease_token = f.lease_token
           order by f.run_id
          offset 0 -- the state is asked of rows that were found: it has indexes, which would be walked
             for update of q) listed
   where was = 'started'
), slotted as materialized (
    select h.run_id, s.task_id, s.ctid as locked
      from held h
      join slots s on s.task_id = any (array[h.task_id]) and s.run_id = h.run_id
     where h.run_at is null and (not h.keeps_slot or h.cancel_reason is not null)
     order by h.task_id
       for update of s
), overtaken as materialized (
    select l.run_id
      from slotted l
     where (select s.ctid from slots s where s.task_id = any (array[l.task_id])) is distinct from l.locked
), gate as materialized (
    select {is_open} as is_open
), gone as (
    delete from queue q
     using held h
     where (select is_open from gate) and q.run_id = any (array[h.run_id]) and h.run_at is null
), waits as (
    insert into parked (run_id, task_id, tenant_id, reason, wake_at, overlap, turns)
    select run_id, task_id, tenant_id, park_reason, park_at, overlap, park_turns
      from held
     where (select is_open from gate) and run_at is null and park_at is not null
), back as (
    update queue q
       set state = 'ready', run_at = h.run_at, lease_token = 0, lease_until = null, worker = null, deadline_at = null
      from held h
     where (select is_open from gate) and q.run_id = any (array[h.run_id]) and h.run_at is not null
), freed as (
    delete from slots s
     using slotted l
     where (select is_open from gate) and s.task_id = any (array[l.task_id])
), written as (
    update runs r
       set state = f.state, reason = f.reason, output = f.output, finish = f.finish, error = f.error,
           turns = f.turns, tool_calls = f.tool_calls, input_tokens = f.input_tokens, output_tokens = f.output_tokens,
           cost_micros = f.cost_micros, execution_ms = r.execution_ms + f.execution_ms, attempt = r.attempt - f.attempts_back,
           crashes = r.crashes + f.crashes, infra_retries = r.infra_retries + f.infra_retries,
           finished_at = case when f.run_at is null and f.park_at is null then $14 end
      from held f
     where (select is_open from gate) and r.id = any (array[f.run_id])
    returning r.id as run_id, f.lease_token, r.tenant_id, r.task_id, r.usage_seq,
              case when f.run_at is null then f.cancel_reason end as cancel_reason, f.has_questions,
              f.is_waited_for or r.id in (select run_id from overtaken) as is_waited_for,
              (f.turns, f.tool_calls, f.input_tokens, f.output_tokens, f.cost_micros) <> (0, 0, 0, 0, 0) as has_usage
)
