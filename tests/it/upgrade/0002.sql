-- Tasks of events and conditions, what they have collected, and what is on the embedded bus.
insert into tasks (id, tenant_id, name, trigger_type, spec, status, status_reason, epoch, version, anchor_at, active_since, zone_database, created_at, updated_at) values
 (id(11), 'ann', 'on an order', 'event', '{"trigger":{"type":"event","source":"shop","event_type":"order"},"executor":"test","action":{"instruction":"","config":{"acts":["succeed"]}},"max_runs":null,"timeout_seconds":600,"retry":{"max_attempts":1,"backoff_seconds":0},"pause_after_failures":null,"metadata":{}}', 'active', null, 1, 1, '2027-02-05T00:00:00+00:00', '2027-02-05T00:00:00+00:00', '2026a', '2027-02-05T00:00:00+00:00', '2027-02-05T00:00:00+00:00'),
 (id(12), 'ann', 'when it is late', 'condition', '{"trigger":{"type":"condition","poll":{"tool":{"name":"current_time"}},"interval":"1h","expression":"value != null"},"executor":"test","action":{"instruction":"","config":{"acts":["succeed"]}},"max_runs":null,"timeout_seconds":600,"retry":{"max_attempts":1,"backoff_seconds":0},"pause_after_failures":null,"metadata":{}}', 'active', null, 1, 1, '2027-02-05T00:00:00+00:00', '2027-02-05T00:00:00+00:00', '2026a', '2027-02-05T00:00:00+00:00', '2027-02-05T00:00:00+00:00');
insert into due (task_id, kind, next_at, nominal_at, epoch, claimed_until, fired, run_count) values
 (id(11), 'event', null, null, 1, null, 1, 1),
 (id(12), 'condition', '2027-03-01T08:30:00+00:00', '2027-03-01T08:30:00+00:00', 1, null, 0, 0);
insert into event_index (shard, version) values (shard(ann), 1);
insert into event_tasks (task_id, shard, version, live, changed_at) values (id(11), shard(ann), 1, true, '2027-02-05T00:00:00+00:00');
insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, attempt, created_at, started_at, finished_at, event_ids, cause) values
 (id(111), id(11), 'ann', 'e:aa', 'event', '2027-02-28T10:00:00+00:00', 'succeeded', 1, '2027-02-28T10:00:00+00:00', '2027-02-28T10:00:00+00:00', '2027-02-28T10:00:01+00:00', '["order-1"]', '{"type":"event","event":{"specversion":"1.0","id":"order-1","source":"shop","type":"order","tenantid":"ann"}}');
insert into task_state (task_id, tenant_id, name, value, updated_at) values (id(11), 'ann', 'seen', '[1,2]', '2027-02-28T10:00:01+00:00');
insert into dead_letters (id, tenant_id, source, type, entry, body, error, deliveries, created_at) values
 (id(401), 'ann', 'shop', 'order', 'events/7', '{"specversion":"1.0","id":"order-0","source":"shop","type":"order","tenantid":"ann"}', 'the filter broke', 5, '2027-02-27T10:00:00+00:00');
