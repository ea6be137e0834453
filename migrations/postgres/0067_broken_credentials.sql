-- Credentials whose owners have to connect an account again are listed among many that can be used.
-- Same number, tables and columns as migrations/sqlite/0067_broken_credentials.sql.

create index credentials_broken on credentials (tenant_id, id) where status = 'needs_consent';
create index credentials_broken_of_all on credentials (id) where status = 'needs_consent';
