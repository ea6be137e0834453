-- How an agent came to the answer of its run: an answer at the limit of turns is no plain success.
-- Same number, tables and columns as migrations/postgres/0040_run_finish.sql.

-- `answer` or `max_turns`; null where no agent answered, and in runs that were recorded before.
alter table runs add column finish text;
