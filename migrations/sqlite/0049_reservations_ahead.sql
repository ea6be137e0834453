-- A reservation may be for several calls of a run: what they have come to stands in its transcript from this entry on, if the
-- worker is lost. Rows of an earlier release are settled with the turn that they are for, and have no such entry.
-- Same number, tables and columns as migrations/postgres/0049_reservations_ahead.sql.
alter table budget_reservations add column from_seq integer not null default 9223372036854775807;
