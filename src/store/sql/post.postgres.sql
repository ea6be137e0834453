insert into deliveries (id, tenant_id, recipient, channel, dedupe_key, run_id, kind, subject, body, fallback,
                        state, next_at, created_at, urgency, subject_ref)
select d.id, d.tenant_id, d.recipient, d.channel, d.dedupe_key, d.run_id, d.kind, d.subject, d.body, d.fallback,
       'pending', $11, $11, d.urgency, d.subject_ref
  from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::uuid[], $7::text[], $8::text[],
              $9::text[], $10::jsonb[], $12::text[], $13::jsonb[])
       as d (id, tenant_id, recipient, channel, dedupe_key, run_id, kind, subject, body, fallback, urgency, subject_ref)
 order by d.tenant_id, d.recipient, d.channel, d.dedupe_key
on conflict (tenant_id, recipient, channel, dedupe_key) do nothing
