-- Appends to the transcripts of runs whose lease still stands (the fence). Rows are locked in the order of their ids, as
-- every batch on `queue` does; the lease itself stays as it is.
with listed as (
    select q.run_id, q.lease_token, q.state
      from unnest($21::uuid[], $22::bigint[]) as l (run_id, lease_token)
      join queue q on q.run_id = any (array[l.run_id]) and q.lease_token = l.lease_token
     order by l.run_id
       for update of q
), held as materialized (
    select distinct run_id, lease_token from listed where state = 'started'
), added as (
    insert into turns (run_id, seq, turn, format, body, turns, tool_calls, input_tokens, output_tokens, cost_micros,
                       duration_ms, created_at, provider_message, model, cache_read_tokens, cache_write_tokens,
                       reasoning_tokens, tool_record, delegation)
    select e.run_id, e.seq, e.turn, e.format, e.body, e.turns, e.tool_calls, e.input_tokens, e.output_tokens, e.cost_micros,
           e.duration_ms, e.created_at, e.provider_message, e.model, e.cache_read_tokens, e.cache_write_tokens,
           e.reasoning_tokens, e.tool_record, e.delegation
      from unnest($1::smallint[], $2::uuid[], $20::bigint[], $3::bigint[], $4::bigint[], $5::jsonb[], $6::bigint[], $7::bigint[],
                  $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::timestamptz[], $13::text[],
                  $14::text[], $15::bigint[], $16::bigint[], $17::bigint[], $18::jsonb[], $19::jsonb[])
             as e (format, run_id, lease_token, seq, turn, body, turns, tool_calls, input_tokens, output_tokens, cost_micros,
                   duration_ms, created_at, provider_message, model, cache_read_tokens, cache_write_tokens,
                   reasoning_tokens, tool_record, delegation)
     where (e.run_id, e.lease_token) in (select run_id, lease_token from held)
    on conflict (run_id, seq) do nothing
)
