-- Budgets: what tenants may spend on models, what each has spent in a day, and what calls under way have reserved.
-- Same number, tables and columns as migrations/sqlite/0042_budgets.sql.

-- Said by an admin for one tenant, in place of `[budgets]`.
create table tenant_budgets (
    tenant_id  text primary key,
    limits     jsonb not null,
    updated_at timestamptz not null
);

-- One ledger for each tenant and day, whose `task_id` is all zeros, and one for each of its tasks. A row is kept where a budget
-- of a day holds. Money is in micro-dollars. The day
-- comes first in the key, by which old ones are forgotten, too. The limits are those of the last reservation.
create table budget_days (
    tenant_id            text not null,
    task_id              uuid not null,
    day                  date not null,
    tokens               bigint not null,
    cost_micros          bigint not null,
    reserved_tokens      bigint not null,
    reserved_cost_micros bigint not null,
    tokens_limit         bigint,
    cost_micros_limit    bigint,
    warned_at            timestamptz,
    exhausted_at         timestamptz,
    primary key (day, tenant_id, task_id)
);

-- One call of a model: the worst that it may come to, under the lease of its run. A row whose lease is not held any more counts
-- for nothing and is taken back.
create table budget_reservations (
    id          uuid primary key,
    run_id      uuid not null,
    lease_token bigint not null,
    tenant_id   text not null,
    task_id     uuid,
    day         date not null,
    tokens      bigint not null,
    cost_micros bigint not null
);
create index budget_reservations_by_run on budget_reservations (run_id);

-- Bumped by each change of `tenant_budgets`. Instances look at this row often; zero says that no tenant ever had its own.
alter table halt_version add column budget_version bigint not null default 0;

alter table tenant_budgets enable row level security;
alter table tenant_budgets force row level security;
create policy tenant on tenant_budgets using (current_setting('reveille.tenant', true) in ('*', tenant_id));

alter table budget_days enable row level security;
alter table budget_days force row level security;
create policy tenant on budget_days using (current_setting('reveille.tenant', true) in ('*', tenant_id));

alter table budget_reservations enable row level security;
alter table budget_reservations force row level security;
create policy tenant on budget_reservations using (current_setting('reveille.tenant', true) in ('*', tenant_id));
