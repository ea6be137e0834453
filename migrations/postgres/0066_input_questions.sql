-- Open questions for what calls lack are listed among many open questions about calls.
-- Same number, tables and columns as migrations/sqlite/0066_input_questions.sql.

create index approvals_inputs on approvals (tenant_id, id) where status = 'pending' and kind = 'input';
create index approvals_inputs_of_all on approvals (id) where status = 'pending' and kind = 'input';
