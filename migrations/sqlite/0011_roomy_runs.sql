-- SQLite writes a row anew where it is: there is nothing to do.
-- Same number, tables and columns as migrations/postgres/0011_roomy_runs.sql.

select 1;
