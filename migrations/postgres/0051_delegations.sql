-- Configured agents that other agents call: an entry of a transcript that one of them has written names the call. Questions to
-- people are of a kind, `approval` or `input`; a run that waits for people names the turns whose questions it waits for.
-- Same number, tables and columns as migrations/sqlite/0051_delegations.sql.
alter table turns add column delegation jsonb;
alter table approvals add column kind text not null default 'approval';
drop index approvals_of_call;
create unique index approvals_of_call on approvals (run_id, turn, call_id, kind) where replaced_by is null;
-- null: those of the newest turn
alter table parked add column turns jsonb;
