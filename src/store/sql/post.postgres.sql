insert into deliveries (id, tenant_id, recipient, channel, dedupe_key, run_id, kind, subject, body, fallback,
                        state, next_at, created_at)
select d.id, d.tenant_id, d.tenant_id, d.channel, d.dedupe_key, d.run_id, d.kind, d.subject, d.body, d.fallback,
       'pending', $10, $10
  from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::text[], $7::text[], $8::text[],
              $9::jsonb[])
       as d (id, tenant_id, channel, dedupe_key, run_id, kind, subject, body, fallback)
on conflict (tenant_id, recipient, channel, dedupe_key) do nothing
