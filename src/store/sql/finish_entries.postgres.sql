-- A step of the statement that finishes runs: entries that waited for the ends. Nobody else writes to the transcripts
-- of runs whose end is written: their rows in `queue` are locked.
added as (
    insert into turns (run_id, seq, turn, format, body, turns, tool_calls, input_tokens, output_tokens, cost_micros,
                       duration_ms, created_at, provider_message, model, cache_read_tokens, cache_write_tokens,
                       reasoning_tokens, tool_record, delegation)
    select e.run_id, e.seq, e.turn, e.format, e.body, e.turns, e.tool_calls, e.input_tokens, e.output_tokens, e.cost_micros,
           e.duration_ms, e.created_at, e.provider_message, e.model, e.cache_read_tokens, e.cache_write_tokens,
           e.reasoning_tokens, e.tool_record, e.delegation
      from unnest($16::bigint[], $17::smallint[], $18::uuid[], $19::bigint[], $20::bigint[], $21::jsonb[], $22::bigint[],
                  $23::bigint[], $24::bigint[], $25::bigint[], $26::bigint[], $27::bigint[], $28::timestamptz[],
                  $29::text[], $30::text[], $31::bigint[], $32::bigint[], $33::bigint[], $34::jsonb[], $35::jsonb[])
             as e (lease_token, format, run_id, seq, turn, body, turns, tool_calls, input_tokens, output_tokens, cost_micros,
                   duration_ms, created_at, provider_message, model, cache_read_tokens, cache_write_tokens,
                   reasoning_tokens, tool_record, delegation)
     -- `is true`: looked up in a table in memory that is made once; a join may compare each with each
     where (select is_open from gate) and ((e.run_id, e.lease_token) in (select run_id, lease_token from held)) is true
    on conflict (run_id, seq) do nothing
    returning run_id, seq, created_at, model, turns, duration_ms, input_tokens, output_tokens, cache_read_tokens,
              cache_write_tokens, reasoning_tokens, cost_micros, tool_record
)
