-- A message of which nobody knows whether it got through.
insert into deliveries (id, tenant_id, recipient, channel, dedupe_key, kind, subject, body, fallback, state, attempts, next_at, created_at, urgency, doubtful) values
 (id(206), 'ann', 'ann', 'email', 'notice:x:3:1', 'notice', 'maybe', 'maybe', '[]', 'pending', 1, '2027-03-01T09:00:00+00:00', '2027-02-20T03:00:00+00:00', 'normal', true);
