-- A run that waits for a person, and what is on record.
insert into tasks (id, tenant_id, name, trigger_type, spec, status, status_reason, epoch, version, anchor_at, active_since, zone_database, created_at, updated_at) values
 (id(21), 'ann', 'asks first', 'schedule', '{"trigger":{"type":"schedule","interval":"30d","catch_up":"latest","overlap":"skip"},"executor":"test","action":{"instruction":"","config":{"acts":["succeed"]}},"max_runs":null,"timeout_seconds":600,"retry":{"max_attempts":1,"backoff_seconds":0},"pause_after_failures":null,"metadata":{}}', 'active', null, 1, 1, '2027-02-10T00:00:00+00:00', '2027-02-10T00:00:00+00:00', '2026a', '2027-02-10T00:00:00+00:00', '2027-02-10T00:00:00+00:00');
insert into due (task_id, kind, next_at, nominal_at, epoch, claimed_until, fired, run_count) values
 (id(21), 'schedule', '2027-03-12T00:00:00+00:00', '2027-03-12T00:00:00+00:00', 1, null, 0, 1);
insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, attempt, created_at, started_at) values
 (id(121), id(21), 'ann', 'm:00000000-0000-0000-0000-000000000121', 'schedule', '2027-03-01T07:50:00+00:00', 'pending_approval', 1, '2027-03-01T07:50:00+00:00', '2027-03-01T07:50:00+00:00');
insert into parked (run_id, task_id, tenant_id, why, wake_at, overlap) values
 (id(121), id(21), 'ann', 'approval', '2027-03-01T10:00:00+00:00', null);
insert into approvals (id, batch_id, run_id, task_id, tenant_id, turn, call_id, tool, digest, proposal, status, created_at, expires_at, decided_at, decided_by, decided_via) values
 (id(501), id(500), id(121), id(21), 'ann', 1, 'call_0', 'send_note', 'd1', '{"tool":"send_note","version":"1.0.0","definition":"00","summary":"Send a note to the room lobby","description":"Send a note to a room.","arguments":{"room":"lobby"},"parameters":{"type":"object"},"category":"side_effect","consequence":"medium","reasons":[],"options":["approve","edit","cancel"],"allow_modification":true,"source":"trigger","on_expiry":"expire","approvers":1,"timeout_seconds":7800}', 'pending', '2027-03-01T07:50:00+00:00', '2027-03-01T10:00:00+00:00', null, null, null),
 (id(502), id(510), id(101), id(1), 'ann', 1, 'call_0', 'send_note', 'd2', '{"tool":"send_note","version":"1.0.0","definition":"00","summary":"Send a note to the room hall","description":"Send a note to a room.","arguments":{"room":"hall"},"parameters":{"type":"object"},"category":"side_effect","consequence":"medium","reasons":[],"options":["approve","cancel"],"allow_modification":false,"source":"trigger","on_expiry":"expire","approvers":1,"timeout_seconds":1800}', 'approved', '2027-02-28T23:00:00+00:00', '2027-02-28T23:30:00+00:00', '2027-02-28T23:10:00+00:00', 'token:admin', 'api');
insert into approval_votes (approval_id, approver, digest, at) values
 (id(501), 'recipient:ann', 'd1', '2027-03-01T07:51:00+00:00'),
 (id(501), 'token:00000000-0000-0000-0000-000000000301', 'd1', '2027-03-01T07:52:00+00:00');
insert into audit (id, tenant_id, at, actor, via, action, subject_type, subject_id, body, position, hash) values
 (id(601), 'ann', '2027-02-28T23:10:00+00:00', 'token:admin', 'api', 'approval.approve', 'approval', id(502), '{}', null, null);
