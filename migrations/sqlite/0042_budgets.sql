-- Budgets: what tenants may spend on models, what each has spent in a day, and what calls under way have reserved.
-- Same number, tables and columns as migrations/postgres/0042_budgets.sql.

-- Said by an admin for one tenant, in place of `[budgets]`.
create table tenant_budgets (
    tenant_id  text primary key,
    limits     text not null,
    updated_at text not null
);

-- One ledger for each tenant and day, whose `task_id` is all zeros, and one for each of its tasks. A row is kept where a budget
-- of a day holds. Money is in micro-dollars. The day
-- comes first in the key, by which old ones are forgotten, too. The limits are those of the last reservation.
create table budget_days (
    tenant_id            text not null,
    task_id              blob not null,
    day                  text not null,
    tokens               integer not null,
    cost_micros          integer not null,
    reserved_tokens      integer not null,
    reserved_cost_micros integer not null,
    tokens_limit         integer,
    cost_micros_limit    integer,
    warned_at            text,
    exhausted_at         text,
    primary key (day, tenant_id, task_id)
);

-- One call of a model: the worst that it may come to, under the lease of its run. A row whose lease is not held any more counts
-- for nothing and is taken back.
create table budget_reservations (
    id          blob primary key,
    run_id      blob not null,
    lease_token integer not null,
    tenant_id   text not null,
    task_id     blob,
    day         text not null,
    tokens      integer not null,
    cost_micros integer not null
);
create index budget_reservations_by_run on budget_reservations (run_id);

-- Bumped by each change of `tenant_budgets`. Instances look at this row often; zero says that no tenant ever had its own.
alter table halt_version add column budget_version integer not null default 0;
