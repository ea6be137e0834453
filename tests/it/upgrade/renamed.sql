-- What a service on schema 30 had under each name that migration 0031 replaces.
insert into tasks (id, tenant_id, name, trigger_type, spec, status, status_reason, epoch, version, anchor_at, active_since, zone_database, created_at, updated_at) values
 (id(41), 'ann', 'holds', 'event', '{"trigger":{"type":"event","source":"shop","event_type":"parcel","hold":true,"overlap":"queue_all","waiting_counts":false},"executor":"test","action":{"instruction":"","config":{"acts":["succeed"]}},"max_runs":null,"timeout_seconds":600,"retry":{"max_attempts":1,"backoff_seconds":0},"pause_after_failures":null,"metadata":{"hold":"mine"}}', 'paused', null, 2, 2, '2027-02-05T00:00:00+00:00', '2027-02-05T00:00:00+00:00', '2026a', '2027-02-05T00:00:00+00:00', '2027-02-05T00:00:00+00:00'),
 (id(42), 'ann', 'waits', 'schedule', '{"trigger":{"type":"schedule","interval":"1h","catch_up":"latest","overlap":"skip","waiting_counts":true},"executor":"test","action":{"instruction":"","config":{"acts":["succeed"]}},"max_runs":3,"timeout_seconds":600,"retry":{"max_attempts":1,"backoff_seconds":0},"pause_after_failures":null,"metadata":{"waiting_counts":true}}', 'active', null, 1, 1, '2027-02-01T00:30:00+00:00', '2027-02-01T00:30:00+00:00', '2026a', '2027-02-01T00:30:00+00:00', '2027-02-01T00:30:00+00:00'),
 (id(43), 'ann', 'fails', 'schedule', '{"trigger":{"type":"schedule","interval":"1h","catch_up":"latest","overlap":"skip"},"executor":"test","action":{"instruction":"","config":{"acts":["fail"]}},"max_runs":null,"timeout_seconds":600,"retry":{"max_attempts":1,"backoff_seconds":0},"pause_after_failures":null,"metadata":{}}', 'active', null, 1, 1, '2027-02-01T00:30:00+00:00', '2027-02-01T00:30:00+00:00', '2026a', '2027-02-01T00:30:00+00:00', '2027-02-01T00:30:00+00:00');
insert into due (task_id, kind, next_at, nominal_at, epoch, claimed_until, fired, run_count, tenant_id) values
 (id(41), 'event', null, null, 2, null, 0, 0, 'ann'),
 (id(42), 'schedule', '2027-03-01T08:30:00+00:00', '2027-03-01T08:30:00+00:00', 1, null, 2, 2, 'ann'),
 (id(43), 'schedule', '2027-03-01T08:30:00+00:00', '2027-03-01T08:30:00+00:00', 1, null, 28, 28, 'ann');
insert into event_tasks (task_id, shard, version, live, changed_at) values (id(41), shard(ann), 1, true, '2027-02-05T00:00:00+00:00');
update event_index set forgotten = 1;
insert into windows (id, task_id, tenant_id, kind, key, opened_at, events) values (id(940), id(41), 'ann', 'hold', '', '2027-03-01T07:00:00+00:00', 1);
insert into window_events (task_id, event_key, window_id, seq, body, created_at) values
 (id(41), 'key-of-parcel-1', id(940), 1, '{"specversion":"1.0","id":"parcel-1","source":"shop","type":"parcel","tenantid":"ann"}', '2027-03-01T07:00:00+00:00');
insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, reason, attempt, created_at, started_at, finished_at, error) values
 (id(141), id(41), 'ann', 'e:parcel-0', 'event', '2027-03-01T06:00:00+00:00', 'skipped', 'hold_full', 0, '2027-03-01T06:00:00+00:00', null, '2027-03-01T06:00:00+00:00', null),
 (id(142), id(42), 'ann', 's:2027-03-01T07:30:00.000Z', 'schedule', '2027-03-01T07:30:00+00:00', 'waiting_for_completion', null, 1, '2027-03-01T07:30:00+00:00', '2027-03-01T07:30:00+00:00', null, null),
 (id(143), id(42), 'ann', 's:2027-03-01T06:30:00.000Z', 'schedule', '2027-03-01T06:30:00+00:00', 'failed', null, 1, '2027-03-01T06:30:00+00:00', '2027-03-01T06:30:00+00:00', '2027-03-01T06:30:01+00:00', '{"code":"credential_missing","message":"there is no credential","lack":{"credential":"shop/work","kind":"missing"}}');
insert into parked (run_id, task_id, tenant_id, why, wake_at, overlap) values (id(142), id(42), 'ann', 'completion', '2027-03-01T08:10:00+00:00', null);
insert into slots (task_id, run_id) values (id(42), id(142));
insert into turns (run_id, seq, turn, format, body, created_at, echo) values
 (id(143), 0, 0, 1, '{"role":"assistant","text":"I buy it."}', '2027-03-01T06:30:00+00:00', '{"wire":"openai","model":"m","raw":"{\"role\":\"assistant\"}"}'),
 (id(143), 1, 1, 1, '{"role":"step_result","name":"order","outcome":{"status":"failed","error":{"code":"credential_missing","message":"there is no credential","lack":{"credential":"shop/work","kind":"missing"}}},"ledger":1}', '2027-03-01T06:30:01+00:00', null);
insert into task_told (task_id, tenant_id, alerts, missing) values
 (id(43), 'ann', '{"broken":{"count":2,"since":"2027-03-01T06:30:00Z","told_at":"2027-03-01T06:30:00Z"}}', 'digest-of-steps');
update approval_votes set marks = '["tenant:ann"]' where approval_id = id(501);
update approvals set began_at = '2027-02-28T23:20:00+00:00' where id = id(502);
insert into live_messages (id, tenant_id, body, decides, created_at, taken_at) values
 (id(801), 'ann', '{}', true, '2027-03-01T07:59:00+00:00', null),
 (id(802), 'ann', '{}', false, '2027-03-01T07:59:00+00:00', '2027-03-01T07:59:01+00:00');
update verifications set tries = 3;
