-- On Postgres, entries of transcripts that one statement writes are counted together, and indexes of work keep no entries together.
-- SQLite calls its triggers for each row, and deletes entries of its indexes at once.
-- Same number, tables and columns as migrations/postgres/0061_work_of_one_instant.sql.

select 1;
