-- Appends to transcripts without a look at leases, where that bug is planted.
insert into turns (run_id, seq, turn, format, body, turns, tool_calls, input_tokens, output_tokens, cost_micros,
                   duration_ms, created_at, provider_message, model, cache_read_tokens, cache_write_tokens,
                   reasoning_tokens, tool_record, delegation)
select e.run_id, e.seq, e.turn, e.format, e.body, e.turns, e.tool_calls, e.input_tokens, e.output_tokens, e.cost_micros,
       e.duration_ms, e.created_at, e.provider_message, e.model, e.cache_read_tokens, e.cache_write_tokens,
       e.reasoning_tokens, e.tool_record, e.delegation
  from unnest($1::smallint[], $2::uuid[], $3::bigint[], $4::bigint[], $5::jsonb[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[],
              $10::bigint[], $11::bigint[], $12::timestamptz[], $13::text[], $14::text[], $15::bigint[], $16::bigint[],
              $17::bigint[], $18::jsonb[], $19::jsonb[])
         as e (format, run_id, seq, turn, body, turns, tool_calls, input_tokens, output_tokens, cost_micros, duration_ms,
               created_at, provider_message, model, cache_read_tokens, cache_write_tokens, reasoning_tokens, tool_record,
               delegation)
on conflict (run_id, seq) do nothing
