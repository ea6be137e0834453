-- A run's record is written when it is due, and again when it ends: with room for the second in the page of the first no
-- index has to follow. Holds for pages that are written from now on.
-- Same number, tables and columns as migrations/sqlite/0011_roomy_runs.sql.

alter table runs set (fillfactor = 50);
