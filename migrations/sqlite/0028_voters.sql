-- Votes count people: what a token descends from, and by what else each voter is known.
-- Same number, tables and columns as migrations/postgres/0028_voters.sql.

-- The token that this one was made with, and that one with, up to the first: `token:<id>`, or `token:admin` for the
-- configured one. Null: it is the first itself, or older than this column.
alter table tokens add column root text;

-- Everything by which the voter is known, as a list of texts; two votes that share one come from one person.
alter table approval_votes add column marks text;
update approval_votes set marks = json_array('tenant:' || substr(approver, 11)) where approver like 'recipient:%';
update approval_votes
   set marks = (select json_array('tenant:' || t.tenant_id, approval_votes.approver)
                  from tokens t
                 where t.tenant_id is not null
                   and lower(hex(t.id)) = replace(substr(approval_votes.approver, 7), '-', ''))
 where approver like 'token:%';
