-- A message that somebody sends again.
insert into deliveries (id, tenant_id, recipient, channel, dedupe_key, kind, subject, body, fallback, state, attempts, next_at, created_at, urgency, due_at) values
 (id(205), 'ann', 'ann', 'email', 'notice:x:2:1', 'notice', 'again', 'again', '[]', 'pending', 1, '2027-03-01T09:00:00+00:00', '2027-02-20T03:00:00+00:00', 'normal', '2027-03-01T09:00:00+00:00');
