//! Tasks and runs by the hundred thousand: one is made by the store, the rest are copies of its rows.
//!
//! So the rows are those that the service writes, whatever columns they have, and a million of them take seconds.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::base::id::{Scope, Tenant};
use crate::base::invalid::ValidationErrors;
use crate::bench::env::{on_bare, random_id};
use crate::bench::{BenchEnv, DirectPool};
use crate::domain::memory::{FactOrigin, NewFact};
use crate::domain::task::{Draft, Task, TaskValidator};
use crate::store::{NewTask, Store};

/// Tenants over which the fixtures are spread.
pub const TENANTS: usize = 100;
/// Rows copied by one statement: it has a time limit, and SQLite holds its one writer meanwhile.
const AT_ONCE: usize = 20_000;

/// Tasks that ended runs are spread over.
pub const ENDED_TASKS: usize = 50;
/// Ended runs that have failed, where there are enough.
pub const ENDED_FAILED: usize = 10;
/// Between two ended runs. A million of them fill eleven weeks, which is less than the retention.
const BETWEEN_ENDED: TimeDelta = TimeDelta::milliseconds(6_900);

/// Runs that have ended.
pub struct EndedRuns {
    /// One of their tasks.
    pub task: Uuid,
    /// The instant of the first.
    pub first_at: DateTime<Utc>,
    /// The instant of the one in the middle.
    pub middle: DateTime<Utc>,
    /// An instant after the last.
    pub last_at: DateTime<Utc>,
}

/// Makes the rows of a measurement in an environment.
pub struct Fixtures<'a> {
    pub place: &'a BenchEnv,
    pub store: &'a Store,
    pub validator: &'a TaskValidator,
}

/// The draft of a task of the measurements, with this trigger.
pub fn draft(trigger: Value) -> Value {
    json!({ "name": "A task of the measurement", "trigger": trigger, "executor": super::probe::NAME, "output": null })
}

/// The draft of a task whose runs the executor of the measurements hands to `pipeline`: one step, which only computes.
pub fn pipeline_draft(trigger: Value) -> Value {
    let mut draft = draft(trigger);
    draft["action"] = json!({ "config": { "steps": [{ "name": "wanted", "filter": "true" }] } });
    draft
}

/// A trigger that fires each hour, from the instant that the copies of its row are given. Its runs need
/// no slot.
pub fn hourly() -> Value {
    json!({ "type": "schedule", "interval": "1h", "overlap": "allow" })
}

/// An hourly trigger whose runs need a slot, as they do by default.
pub fn hourly_with_a_slot() -> Value {
    json!({ "type": "schedule", "interval": "1h" })
}

impl Fixtures<'_> {
    /// One task, as a caller makes it.
    pub async fn task(&self, tenant: &str, draft: &Value) -> anyhow::Result<Task> {
        let (task, nominal_at) = self.read(tenant, draft)?;
        self.store.create_task(&task, nominal_at, None).await?;
        Ok(task)
    }

    /// A task that is read and checked, and not stored.
    pub fn read(&self, tenant: &str, draft: &Value) -> anyhow::Result<NewTask> {
        let now = self.store.clock().now();
        let tenant = Tenant::new(tenant).map_err(|why| ValidationErrors::one("/tenant_id", why));
        let draft = Draft::parse(tenant, draft, self.validator, now)?;
        let (task, next) = Task::new(random_id(), draft, now).map_err(|fault| ValidationErrors(vec![fault]))?;
        Ok((task, next.map(|next| next.nominal)))
    }

    /// So many hourly tasks of many tenants that are all due at this instant.
    pub async fn due(&self, count: usize, at: DateTime<Utc>) -> anyhow::Result<()> {
        self.due_by(hourly(), count, at).await
    }

    /// So many tasks with this trigger, of many tenants, that are all due at this instant.
    pub async fn due_by(&self, trigger: Value, count: usize, at: DateTime<Utc>) -> anyhow::Result<()> {
        self.due_as(&draft(trigger), count, at).await
    }

    /// So many tasks of this draft, of many tenants, that are all due at this instant. Their trigger is an hourly one.
    pub async fn due_as(&self, draft: &Value, count: usize, at: DateTime<Utc>) -> anyhow::Result<()> {
        self.copy_due(count, at, &tenant(0), self.tenant_of("g.n"), draft).await
    }

    /// So many tasks of this draft, of one tenant, whose name has no quotes, that are all due at this instant. Their
    /// trigger is an hourly one.
    pub async fn due_of(&self, tenant: &str, draft: &Value, count: usize, at: DateTime<Utc>) -> anyhow::Result<()> {
        self.copy_due(count, at, tenant, format!("'{tenant}'"), draft).await
    }

    async fn copy_due(
        &self,
        count: usize,
        at: DateTime<Utc>,
        tenant: &str,
        spread: String,
        draft: &Value,
    ) -> anyhow::Result<()> {
        let model = self.task(tenant, draft).await?;
        let id = self.id_of(&base_id(), "g.n");
        // the instant lies an hour after the anchor, on the grid of the interval
        let anchor = at - TimeDelta::hours(1);
        let tasks = [("id", id.as_str()), ("tenant_id", &spread), ("anchor_at", "$2"), ("active_since", "$2")];
        self.copy("tasks", "id", model.id, count, &tasks, anchor).await?;
        let due = [("task_id", id.as_str()), ("next_at", "$2"), ("nominal_at", "$2")];
        self.copy("due", "task_id", model.id, count, &due, at).await?;
        self.remove(model.id).await
    }

    /// So many runs that are queued and ready, over 500 tasks that may run beside themselves.
    pub async fn queued(&self, count: usize) -> anyhow::Result<()> {
        let trigger = json!({ "type": "schedule", "interval": "1h", "overlap": "allow" });
        let model = self.task(&tenant(0), &draft(trigger)).await?;
        let run_id = random_id();
        let now = self.store.clock().now();
        self.store.run_now(&Scope::Every, model.id, run_id, None, now, None).await?;
        let (tasks, runs) = (base_id(), base_id());
        let task = self.id_of(&tasks, "g.n % 500");
        let spread = self.tenant_of("g.n % 500");
        let far = now + TimeDelta::days(1);
        let of_task = [("id", task.as_str()), ("tenant_id", &spread)];
        self.copy("tasks", "id", model.id, 500, &of_task, far).await?;
        self.copy("due", "task_id", model.id, 500, &[("task_id", task.as_str()), ("next_at", "$2")], far).await?;
        let id = self.id_of(&runs, "g.n");
        let key = format!("'m:' || {}", if self.place.is_postgres() { "g.n::text" } else { "g.n" });
        let run = [("id", id.as_str()), ("task_id", &task), ("tenant_id", &spread), ("fire_key", &key)];
        self.copy("runs", "id", run_id, count, &run, now).await?;
        let place = [("run_id", id.as_str()), ("task_id", &task), ("tenant_id", &spread), ("run_at", "$2")];
        self.copy("queue", "run_id", run_id, count, &place, now).await?;
        for (table, key) in [("runs", "id"), ("queue", "run_id")] {
            self.delete(table, key, run_id).await?;
        }
        self.remove(model.id).await
    }

    /// So many runs of one tenant, whose name has no quotes, that have ended one after the other until a moment ago,
    /// over [`ENDED_TASKS`] tasks. All have succeeded but [`ENDED_FAILED`], which are spread over the whole time.
    pub async fn ended_runs(&self, tenant: &str, count: usize) -> anyhow::Result<EndedRuns> {
        let trigger = json!({ "type": "schedule", "interval": "1d", "overlap": "allow" });
        let model = self.task(tenant, &draft(trigger)).await?;
        let (run_id, now) = (random_id(), self.store.clock().now());
        self.store.run_now(&Scope::Every, model.id, run_id, None, now, None).await?;
        let (base, far) = (base_id(), now + TimeDelta::days(1));
        let task = self.id_of(&base, &format!("g.n % {ENDED_TASKS}"));
        self.copy("tasks", "id", model.id, ENDED_TASKS, &[("id", task.as_str())], far).await?;
        self.copy("due", "task_id", model.id, ENDED_TASKS, &[("task_id", task.as_str()), ("next_at", "$2")], far)
            .await?;
        let first_at = now - BETWEEN_ENDED * count as i32;
        let (id, instant) = self.id_and_instant(first_at);
        let key = format!("'m:' || {}", if self.place.is_postgres() { "g.n::text" } else { "g.n" });
        let each = (count / ENDED_FAILED).max(1);
        let state = format!("case when g.n % {each} = {} then 'failed' else 'succeeded' end", each / 2);
        let instants =
            ["scheduled_for", "created_at", "started_at", "finished_at"].map(|name| (name, instant.as_str()));
        let run = [("id", id.as_str()), ("task_id", &task), ("fire_key", &key), ("state", &state), ("attempt", "1")];
        self.copy("runs", "id", run_id, count, &[&run[..], &instants[..]].concat(), now).await?;
        for (table, key) in [("runs", "id"), ("queue", "run_id")] {
            self.delete(table, key, run_id).await?;
        }
        self.remove(model.id).await?;
        let task = Uuid::try_parse(&format!("{base}{:012x}", 0))?;
        Ok(EndedRuns { task, first_at, middle: first_at + BETWEEN_ENDED * (count / 2) as i32, last_at: now })
    }

    /// So many facts, spread over so many tenants, which are called `facts-0` and so on.
    pub async fn facts(&self, count: usize, tenants: usize) -> anyhow::Result<()> {
        self.copy_facts("facts-model", count, &format!("'facts-' || (g.n % {tenants})"), &format!("g.n / {tenants}"))
            .await
    }

    /// So many facts of one tenant, whose name has no quotes.
    pub async fn facts_of(&self, tenant: &str, count: usize) -> anyhow::Result<()> {
        self.copy_facts(tenant, count, &format!("'{tenant}'"), "g.n").await
    }

    /// One in ten of a tenant's facts is of its profile.
    async fn copy_facts(&self, model: &str, count: usize, tenant: &str, number: &str) -> anyhow::Result<()> {
        let new = NewFact {
            collection: None,
            text: "A fact of the measurement".into(),
            origin: FactOrigin::Person,
            is_direct: true,
            source: None,
            noted_by: "bench".into(),
            call_key: None,
        };
        let model = Tenant::new(model).map_err(anyhow::Error::msg)?;
        let id = self.store.note_fact(&model, &new, None).await?.fact.id;
        let (of_profile, key, text) = (format!("{number} % 10 = 0"), self.id_of(&base_id(), "g.n"), fact_text());
        let changes = [
            ("id", key.as_str()),
            ("tenant_id", tenant),
            ("is_profile", &of_profile),
            ("text", &text),
            ("folded", &format!("lower({text})")),
            ("identity", "'bench:' || g.n"),
        ];
        self.copy("facts", "id", id, count, &changes, self.store.clock().now()).await?;
        self.delete("facts", "id", id).await
    }

    /// Ids that carry their instant, as those of runs do, and the instants: one for each number, from the first on.
    fn id_and_instant(&self, first: DateTime<Utc>) -> (String, String) {
        let (from, step) = (first.timestamp_millis(), BETWEEN_ENDED.num_milliseconds());
        match self.place.inside {
            DirectPool::Postgres(_) => {
                let millis = format!("({from} + g.n::bigint * {step})");
                let id = format!("(lpad(to_hex({millis}), 12, '0') || '70008' || lpad(to_hex(g.n), 15, '0'))::uuid");
                (id, format!("to_timestamp({millis} / 1000.0)"))
            }
            DirectPool::Sqlite(_) => {
                let millis = format!("({from} + g.n * {step})");
                let id = format!("unhex(printf('%012x70008%015x', {millis}, g.n))");
                (id, format!("strftime('%Y-%m-%dT%H:%M:%f+00:00', {millis} / 1000.0, 'unixepoch')"))
            }
        }
    }

    async fn remove(&self, task: Uuid) -> anyhow::Result<()> {
        self.delete("tasks", "id", task).await?;
        self.delete("due", "task_id", task).await
    }

    async fn delete(&self, table: &str, key: &str, id: Uuid) -> anyhow::Result<()> {
        let delete = AssertSqlSafe(format!("delete from {table} where {key} = $1"));
        on_bare!(&self.place.inside, |pool| sqlx::query(delete).bind(id).execute(pool).await.map(drop)?);
        Ok(())
    }

    /// So many runs that ended long ago, for housekeeping to forget; on Postgres alone, as bursts are.
    pub async fn old_runs(&self, count: usize) -> anyhow::Result<()> {
        let (id, long_ago) = (self.id_of("00000000000000000000", "g.n"), "'1970-01-01T00:00:00+00:00'");
        let text = format!(
            "insert into runs (id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at, finished_at)
             select {id}, {}, 'old:' || g.n, 'schedule', {long_ago}, 'succeeded', {long_ago}, {long_ago}
               from generate_series(1, {count}) as g (n)",
            self.tenant_of("g.n")
        );
        self.place.inside.execute(text).await
    }

    /// Copies one row so many times; `changes` are columns and what stands in them, where `g.n` counts from 0 and `$2`
    /// is `at`.
    async fn copy(
        &self,
        table: &str,
        key: &str,
        id: Uuid,
        count: usize,
        changes: &[(&str, &str)],
        at: DateTime<Utc>,
    ) -> anyhow::Result<()> {
        let columns = self.columns(table).await?;
        let values: Vec<&str> = columns
            .iter()
            .map(|column| changes.iter().find(|(name, _)| name == column).map_or(column.as_str(), |(_, value)| value))
            .collect();
        let numbers = match self.place.inside {
            DirectPool::Postgres(_) => "generate_series($3::int, $4::int - 1) as g (n)",
            DirectPool::Sqlite(_) => {
                "(with recursive c (n) as (select $3 union all select n + 1 from c where n + 1 < $4) select n from c) as g"
            }
        };
        let text = format!(
            "insert into {table} ({}) select {} from {table}, {numbers} where {key} = $1 and ($2 is not null)",
            columns.join(", "),
            values.join(", ")
        );
        for first in (0..count).step_by(AT_ONCE) {
            let past = (first + AT_ONCE).min(count);
            on_bare!(&self.place.inside, |pool| sqlx::query(AssertSqlSafe(text.clone()))
                .bind(id)
                .bind(at)
                .bind(first as i32)
                .bind(past as i32)
                .execute(pool)
                .await
                .map(drop)?);
        }
        Ok(())
    }

    /// Its columns that are written: none that the database derives from others.
    async fn columns(&self, table: &str) -> anyhow::Result<Vec<String>> {
        let columns: Vec<String> = match &self.place.inside {
            DirectPool::Postgres(pool) => {
                sqlx::query_scalar(
                    "select column_name::text from information_schema.columns
                      where table_schema = current_schema() and table_name = $1 and is_generated = 'NEVER'
                      order by ordinal_position",
                )
                .bind(table)
                .fetch_all(pool)
                .await?
            }
            DirectPool::Sqlite(pool) => {
                sqlx::query_scalar("select name from pragma_table_info($1)").bind(table).fetch_all(pool).await?
            }
        };
        anyhow::ensure!(!columns.is_empty(), "there is no table {table}");
        Ok(columns)
    }

    fn tenant_of(&self, number: &str) -> String {
        format!("'tenant-' || (({number}) % {TENANTS})")
    }

    /// Ids that grow with their number, as those do that are made one after another.
    fn id_of(&self, base: &str, number: &str) -> String {
        match self.place.inside {
            DirectPool::Postgres(_) => format!("('{base}' || lpad(to_hex({number}), 12, '0'))::uuid"),
            DirectPool::Sqlite(_) => format!("unhex('{base}' || printf('%012x', {number}))"),
        }
    }
}

/// The text of the fact with the number `g.n`, in SQL.
pub fn fact_text() -> String {
    "'They like drink' || (g.n % 499) || ' best, and asked for room' || (g.n % 61) || ' as guest ' || g.n".to_owned()
}

/// The first 20 hexadecimal digits of an id that nothing else has.
fn base_id() -> String {
    let id = random_id().simple().to_string();
    id[..20].to_owned()
}

pub fn tenant(number: usize) -> String {
    format!("tenant-{}", number % TENANTS)
}
