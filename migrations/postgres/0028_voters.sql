-- Votes count people: what a token descends from, and by what else each voter is known.
-- Same number, tables and columns as migrations/sqlite/0028_voters.sql.

-- Row-level security would hide the tokens that are joined below from whoever owns them.
select set_config('reveille.tenant', '*', true);

-- The token that this one was made with, and that one with, up to the first: `token:<id>`, or `token:admin` for the
-- configured one. Null: it is the first itself, or older than this column.
alter table tokens add column root text;

-- Everything by which the voter is known, as a list of texts; two votes that share one come from one person.
alter table approval_votes add column marks jsonb;
update approval_votes set marks = jsonb_build_array('tenant:' || substr(approver, 11)) where approver like 'recipient:%';
update approval_votes v set marks = jsonb_build_array('tenant:' || t.tenant_id, v.approver)
  from tokens t
 where v.approver = 'token:' || t.id::text and t.tenant_id is not null;
