#!/usr/bin/env bash
# Makes the service's role and its database at the first start: row-level security holds for it, as it does not for a superuser.
set -euo pipefail
psql -v ON_ERROR_STOP=1 -v password="$REVEILLE_DATABASE_PASSWORD" --username postgres --dbname postgres <<'SQL'
create role reveille login nosuperuser nobypassrls nocreatedb nocreaterole password :'password';
create database reveille owner reveille encoding 'UTF8' template template0;
SQL
