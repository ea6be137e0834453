-- Each row of `runs` counts 300 bytes, about what it takes with its indexes, besides its long parts. A row without any of those
-- counted nothing.
-- Same number, tables and columns as migrations/sqlite/0057_run_rows.sql.

-- A new row without long parts has the default, for nothing else measures it. Rows that are there already stay as they were
-- counted: a deletion gives back what stands in the row. One of them that is rewritten is measured anew, and the difference is
-- noted.
alter table runs alter column stored_bytes set default 300;
create or replace function measure_runs() returns trigger language plpgsql as $$
begin
    new.stored_bytes := 300 + coalesce(pg_column_size(new.input), 0) + coalesce(pg_column_size(new.cause), 0)
                      + coalesce(pg_column_size(new.output), 0) + coalesce(pg_column_size(new.error), 0);
    return new;
end
$$;
