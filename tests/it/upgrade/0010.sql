-- A task that files know by its key.
insert into tasks (id, tenant_id, key, name, trigger_type, spec, status, status_reason, epoch, version, anchor_at, active_since, zone_database, created_at, updated_at) values
 (id(31), 'ann', 'reports/daily', 'by its key', 'schedule', '{"trigger":{"type":"schedule","interval":"30d","catch_up":"latest","overlap":"skip"},"executor":"test","action":{"instruction":"","config":{"acts":["succeed"]}},"max_runs":null,"timeout_seconds":600,"retry":{"max_attempts":1,"backoff_seconds":0},"pause_after_failures":null,"metadata":{}}', 'active', null, 1, 1, '2027-02-10T00:00:00+00:00', '2027-02-10T00:00:00+00:00', '2026a', '2027-02-10T00:00:00+00:00', '2027-02-10T00:00:00+00:00');
insert into due (task_id, kind, next_at, nominal_at, epoch, claimed_until, fired, run_count) values
 (id(31), 'schedule', '2027-03-12T00:00:00+00:00', '2027-03-12T00:00:00+00:00', 1, null, 0, 0);
