-- A credential, who used it, and the task that names it. What is sealed needs the key of its time, so nobody opens it.
insert into credentials (tenant_id, service, account, id, sealed, generation, key_id, hosts, inject, status, version, created_at, updated_at) values
 ('ann', 'shop', 'work', id(701), 'v1.sealed', 1, 'an older key', '["api.example.org"]', '{"as":"bearer"}', 'active', 1, '2027-02-15T00:00:00+00:00', '2027-02-15T00:00:00+00:00');
insert into credential_uses (id, tenant_id, service, account, at, run_id, task_id, used_by, host, outcome) values
 (id(702), 'ann', 'shop', 'work', '2027-02-28T23:30:01+00:00', id(101), id(1), 'tool:http_send', 'api.example.org', 'used');
insert into task_credentials (task_id, tenant_id, service, account) values (id(1), 'ann', 'shop', 'work');
