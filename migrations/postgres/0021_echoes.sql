-- The assistant's messages as their providers wrote them, which thinking models want back unchanged. Text: a JSON column
-- would reorder the fields.
-- Same number, tables and columns as migrations/sqlite/0021_echoes.sql.

alter table turns add column echo text;
