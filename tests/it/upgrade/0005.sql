-- Telling people with measure: a message that waits for the morning, what was told, a code that is out.
insert into deliveries (id, tenant_id, recipient, channel, dedupe_key, kind, subject, body, fallback, state, attempts, next_at, created_at, urgency, held) values
 (id(204), 'ann', 'ann', 'email', 'notice:x:1:1', 'notice', 'hello', 'hello', '["webhook"]', 'pending', 0, '2027-03-01T09:00:00+00:00', '2027-03-01T03:00:00+00:00', 'low', 'quiet_hours');
insert into interruptions (tenant_id, day, sent) values ('ann', '2027-02-28', 3);
insert into verifications (tenant_id, channel, address_hash, code_hash, tries, expires_at) values ('ann', 'sms', bytes(01), bytes(02), 0, '2027-03-01T08:10:00+00:00');
insert into task_told (task_id, tenant_id, output_hash, alerts) values (id(1), 'ann', bytes(03), null);
