-- Why a run was recorded, as data: it was read out of the fire key.
-- Same number, tables and columns as migrations/postgres/0034_run_origins.sql.

-- `trigger`, `request`, `backfill` or `retry`.
alter table runs add column origin text not null default 'trigger';

update runs
   set origin = case substr(fire_key, 1, 2) when 'm:' then 'request' when 'b:' then 'backfill' else 'retry' end
 where substr(fire_key, 1, 2) in ('m:', 'b:', 't:');
