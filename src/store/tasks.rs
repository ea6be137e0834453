//! Tasks and their next instants: creating, reading, changing, pausing, deleting.
//!
//! A change of trigger, policies or status bumps the epoch and, in the same transaction, takes back the fires that
//! were recorded ahead of their instant; what is already due stays and runs.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::QueryBuilder;
use sqlx::types::Json;
use uuid::Uuid;

use crate::id::Scope;
use crate::notification::NewDelivery;
use crate::store::db::Db;
use crate::store::hot::Hot;
use crate::store::idempotency::{Answer, Idempotency, once};
use crate::store::requests::LOCK_DUE;
use crate::store::runs::{NewRun, insert_run};
use crate::store::text::{document, optional, text};
use crate::store::{Split, Store, StoreError, Topic};
use crate::task::change::TaskChange;
use crate::task::{Spec, Task, TaskStatus};
use crate::trigger;

/// Which tasks to list. Newest first, after the task `before`.
#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    pub tenant: Option<String>,
    pub status: Option<TaskStatus>,
    pub trigger_type: Option<String>,
    /// Part of the name; the case of ASCII letters does not matter, that of others as the database has it.
    pub q: Option<String>,
    pub before: Option<Uuid>,
    pub limit: i64,
}

#[derive(sqlx::FromRow)]
struct TaskRow {
    id: Uuid,
    tenant_id: String,
    name: String,
    spec: Json<Spec>,
    status: String,
    status_reason: Option<String>,
    epoch: i64,
    version: i64,
    anchor_at: DateTime<Utc>,
    active_since: DateTime<Utc>,
    next_at: Option<DateTime<Utc>>,
    nominal_at: Option<DateTime<Utc>>,
    run_count: i64,
    fired: i64,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
}

impl TaskRow {
    fn task(self) -> Result<Task, StoreError> {
        let status = TaskStatus::parse(&self.status)
            .ok_or_else(|| StoreError::Corrupt(format!("task {} has the status {}", self.id, self.status)))?;
        Ok(Task {
            id: self.id,
            tenant_id: self.tenant_id,
            name: self.name,
            spec: self.spec.0,
            status,
            status_reason: self.status_reason,
            epoch: self.epoch,
            version: self.version,
            anchor_at: self.anchor_at,
            active_since: self.active_since,
            next_fire_at: self.next_at,
            run_count: self.run_count,
            fired: self.fired,
            created_at: self.created_at,
            updated_at: self.updated_at,
        })
    }
}

macro_rules! select_task {
    ($rest:literal) => {
        concat!(
            "select t.id, t.tenant_id, t.name, t.spec, t.status, t.status_reason, t.epoch, t.version, t.anchor_at,
                    t.active_since, d.next_at, d.nominal_at, d.run_count, d.fired, t.created_at, t.updated_at
               from tasks t join due d on d.task_id = t.id ",
            $rest
        )
    };
}

macro_rules! recorded_ahead {
    () => {
        "select q.run_id, r.scheduled_for
           from queue q join runs r on r.id = q.run_id
          where q.task_id = $1 and q.state <> 'started' and q.run_at > $2 and r.attempt = 0 and r.fire_key like 's:%'
          order by q.run_id"
    };
}

/// Locks the task's `due` row, the first in the order, and then reads the task: in a statement of its own, because one
/// that had to wait for the lock would see the task as it was before. SQLite's writer is alone anyway.
macro_rules! lock_task {
    ($db:expr, $conn:ident, $id:expr, $scope:expr) => {{
        sqlx::query($db.text(LOCK_DUE)).bind($id).execute(&mut *$conn).await?;
        let row: Option<TaskRow> = sqlx::query_as(select_task!("where t.id = $1 and ($2 is null or t.tenant_id = $2)"))
            .bind($id)
            .bind($scope.tenant())
            .fetch_optional(&mut *$conn)
            .await?;
        row.ok_or(StoreError::NotFound)?
    }};
}

impl Store {
    /// Stores a new task as `Task::new` made it, with the nominal instant of its first fire; confined to its tenant.
    pub async fn create_task(
        &self,
        task: &Task,
        nominal_at: Option<DateTime<Utc>>,
        idempotency: Option<&Idempotency>,
    ) -> Result<Answer<()>, StoreError> {
        on_write!(self.db, |conn| once!(conn, idempotency, task.created_at), then Some(task.tenant_id.as_str()), {
            sqlx::query(
                "insert into tasks (id, tenant_id, name, trigger_type, spec, status, status_reason, epoch, version,
                                    anchor_at, active_since, zone_database, created_at, updated_at)
                 values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $13)",
            )
            .bind(task.id)
            .bind(&task.tenant_id)
            .bind(text(&task.name))
            .bind(task.spec.trigger.kind())
            .bind(document(&task.spec)?)
            .bind(task.status.as_str())
            .bind(optional(task.status_reason.as_deref()))
            .bind(task.epoch)
            .bind(task.version)
            .bind(task.anchor_at)
            .bind(task.active_since)
            .bind(trigger::zone_database_version())
            .bind(task.created_at)
            .execute(&mut *conn)
            .await?;
            sqlx::query("insert into due (task_id, kind, next_at, nominal_at, epoch) values ($1, $2, $3, $4, $5)")
                .bind(task.id)
                .bind(task.spec.trigger.kind())
                .bind(task.next_fire_at)
                .bind(nominal_at)
                .bind(task.epoch)
                .execute(&mut *conn)
                .await?;
        });
        self.hint(Topic::Due);
        Ok(Answer::Done(()))
    }

    /// One task.
    pub async fn get_task(&self, scope: &Scope, id: Uuid) -> Result<Task, StoreError> {
        let row: Option<TaskRow> = on_read!(self.db, scope, |conn| {
            sqlx::query_as(select_task!("where t.id = $1 and ($2 is null or t.tenant_id = $2)"))
                .bind(id)
                .bind(scope.tenant())
                .fetch_optional(conn)
                .await?
        });
        row.ok_or(StoreError::NotFound)?.task()
    }

    /// Tasks by their ids; those that are gone are left out, and those that can't be read: one task that is damaged
    /// must not keep the runs of others from being started.
    pub(super) async fn tasks_by_id(&self, ids: &[Uuid]) -> Result<HashMap<Uuid, Task>, StoreError> {
        match self.all_tasks_by_id(ids).await {
            Err(StoreError::Corrupt(_)) => {}
            read => return read,
        }
        let mut readable = HashMap::with_capacity(ids.len());
        for id in ids {
            match self.all_tasks_by_id(&[*id]).await {
                Err(StoreError::Corrupt(why)) => tracing::error!(task_id = %id, why, "a task can't be read"),
                read => readable.extend(read?),
            }
        }
        Ok(readable)
    }

    async fn all_tasks_by_id(&self, ids: &[Uuid]) -> Result<HashMap<Uuid, Task>, StoreError> {
        let rows: Vec<TaskRow> = match &self.db {
            Db::Postgres(pool) => {
                sqlx::query_as(select_task!("where t.id = any($1)")).bind(ids).fetch_all(pool).await?
            }
            Db::Sqlite { readers, .. } => {
                let mut rows = Vec::with_capacity(ids.len());
                for id in ids {
                    rows.extend(
                        sqlx::query_as(select_task!("where t.id = $1")).bind(id).fetch_optional(readers).await?,
                    );
                }
                rows
            }
        };
        rows.into_iter().map(|row| Ok((row.id, row.task()?))).collect()
    }

    /// Tasks that match, newest first.
    pub async fn list_tasks(&self, scope: &Scope, filter: &TaskFilter) -> Result<Vec<Task>, StoreError> {
        let rows: Vec<TaskRow> = on_read!(self.db, scope, |conn| {
            let mut query = QueryBuilder::new(select_task!("where true"));
            for tenant in [scope.tenant(), filter.tenant.as_deref()].into_iter().flatten() {
                query.push(" and t.tenant_id = ").push_bind(text(tenant).into_owned());
            }
            if let Some(status) = filter.status {
                query.push(" and t.status = ").push_bind(status.as_str());
            }
            if let Some(kind) = &filter.trigger_type {
                query.push(" and t.trigger_type = ").push_bind(text(kind).into_owned());
            }
            if let Some(part) = &filter.q {
                let pattern = format!("%{}%", text(part).replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_"));
                query.push(" and lower(t.name) like lower(").push_bind(pattern).push(") escape '\\'");
            }
            if let Some(before) = filter.before {
                query.push(" and t.id < ").push_bind(before);
            }
            query.push(" order by t.id desc limit ").push_bind(filter.limit);
            query.build_query_as().fetch_all(conn).await?
        });
        rows.into_iter().map(TaskRow::task).collect()
    }

    /// Changes a task and plans it anew: fires that are recorded ahead are taken back, the next instant is counted
    /// from now, and what was missed while it was paused is recorded as skipped (unless the trigger catches up).
    ///
    /// An instant that is due and not recorded yet is fired first, so that a change never loses it.
    pub async fn change_task(&self, scope: &Scope, id: Uuid, change: &TaskChange) -> Result<Task, StoreError> {
        loop {
            let now = self.clock.now();
            match self.try_change(scope, id, change, None, now).await? {
                Some(task) => {
                    self.hint(Topic::Due);
                    return Ok(task);
                }
                None => self.fire_task(id, now).await?,
            }
        }
    }

    /// One try; `None` where an instant is due that has to be fired first.
    pub(super) async fn try_change(
        &self,
        scope: &Scope,
        id: Uuid,
        change: &TaskChange,
        notice: Option<&NewDelivery>,
        now: DateTime<Utc>,
    ) -> Result<Option<Task>, StoreError> {
        Ok(on_write!(self.db, scope, |conn| {
            let row = lock_task!(self.db, conn, id, scope);
            if row.next_at.is_some_and(|next| next <= now) {
                return Ok(None);
            }
            let considered = row.nominal_at;
            let mut before = row.task()?;
            let taken_back: Vec<(Uuid, DateTime<Utc>)> =
                sqlx::query_as(self.db.text(RECORDED_AHEAD)).bind(id).bind(now).fetch_all(&mut *conn).await?;
            before.fired -= taken_back.len() as i64;
            before.run_count -= taken_back.len() as i64;
            let unconsidered = taken_back.iter().map(|(_, nominal)| *nominal).chain(considered).min();
            let mut changed =
                before.change(change, unconsidered, now).map_err(|e| StoreError::Conflict(e.to_string()))?;
            if changed.replanned {
                for (run_id, _) in &taken_back {
                    sqlx::query("delete from queue where run_id = $1").bind(run_id).execute(&mut *conn).await?;
                    sqlx::query("delete from runs where id = $1").bind(run_id).execute(&mut *conn).await?;
                }
                sqlx::query(
                    "update due set next_at = $2, nominal_at = $3, epoch = $4, fired = $5, run_count = $6, kind = $7
                      where task_id = $1",
                )
                .bind(id)
                .bind(changed.task.next_fire_at)
                .bind(changed.nominal_at)
                .bind(changed.task.epoch)
                .bind(changed.task.fired)
                .bind(changed.task.run_count)
                .bind(changed.task.spec.trigger.kind())
                .execute(&mut *conn)
                .await?;
            } else {
                changed.task.fired += taken_back.len() as i64;
                changed.task.run_count += taken_back.len() as i64;
            }
            if let Some(missed) = &changed.paused {
                let skipped = NewRun::skipped(&changed.task, missed, "paused", now);
                insert_run!(conn, skipped);
            }
            sqlx::query(
                "update tasks set name = $2, trigger_type = $3, spec = $4, status = $5, status_reason = $6, epoch = $7,
                        version = $8, anchor_at = $9, active_since = $10, zone_database = $11, updated_at = $12
                  where id = $1",
            )
            .bind(id)
            .bind(text(&changed.task.name))
            .bind(changed.task.spec.trigger.kind())
            .bind(document(&changed.task.spec)?)
            .bind(changed.task.status.as_str())
            .bind(optional(changed.task.status_reason.as_deref()))
            .bind(changed.task.epoch)
            .bind(changed.task.version)
            .bind(changed.task.anchor_at)
            .bind(changed.task.active_since)
            .bind(trigger::zone_database_version())
            .bind(now)
            .execute(&mut *conn)
            .await?;
            if let Some(notice) = notice {
                conn.post(&[notice], now).await?;
            }
            Some(changed.task)
        }))
    }

    /// Removes a task. Its finished runs stay, those that wait are cancelled, running ones are asked to end.
    pub async fn delete_task(&self, scope: &Scope, id: Uuid) -> Result<(), StoreError> {
        let now = self.clock.now();
        on_write!(self.db, scope, |conn| {
            lock_task!(self.db, conn, id, scope);
            // The first look waits for whoever ends a run of the task; the second sees whom it handed the slot to.
            // From then on the queue of the task stands still.
            let mut queued: Vec<(Uuid, String)> = Vec::new();
            for _ in 0..2 {
                queued = sqlx::query_as(self.db.text(LOCK_QUEUE)).bind(id).fetch_all(&mut *conn).await?;
            }
            sqlx::query("update queue set cancel_reason = $2 where task_id = $1 and state = 'started' and cancel_reason is null")
                .bind(id)
                .bind(REASON_DELETED)
                .execute(&mut *conn)
                .await?;
            sqlx::query("delete from queue where task_id = $1 and state <> 'started'")
                .bind(id)
                .execute(&mut *conn)
                .await?;
            sqlx::query("delete from slots where task_id = $1").bind(id).execute(&mut *conn).await?;
            let parked: Vec<Uuid> = sqlx::query_scalar("delete from parked where task_id = $1 returning run_id")
                .bind(id)
                .fetch_all(&mut *conn)
                .await?;
            let unstarted = queued.into_iter().filter(|(_, state)| state != "started").map(|(run_id, _)| run_id);
            for run_id in unstarted.chain(parked) {
                sqlx::query("update runs set state = 'cancelled', reason = $2, finished_at = $3 where id = $1")
                    .bind(run_id)
                    .bind(REASON_DELETED)
                    .bind(now)
                    .execute(&mut *conn)
                    .await?;
            }
            for statement in ["delete from due where task_id = $1", "delete from tasks where id = $1"] {
                sqlx::query(statement).bind(id).execute(&mut *conn).await?;
            }
        });
        self.hint(Topic::Cancels);
        Ok(())
    }

    /// How many tasks have each status.
    pub async fn count_tasks(&self, scope: &Scope) -> Result<Vec<(String, i64)>, StoreError> {
        Ok(on_read!(self.db, scope, |conn| {
            sqlx::query_as(
                "select status, count(*) from tasks where ($1 is null or tenant_id = $1) group by status order by status",
            )
            .bind(scope.tenant())
            .fetch_all(conn)
            .await?
        }))
    }
}

/// Why runs of a task that was deleted ended.
const REASON_DELETED: &str = "task_deleted";

/// All of a task's runs that are queued, claimed or started.
const LOCK_QUEUE: Split = Split {
    postgres: "select run_id, state from queue where task_id = $1 order by run_id for update",
    sqlite: "select run_id, state from queue where task_id = $1 order by run_id",
};

/// Automatic fires that are recorded, not started, and not due: a change takes them back.
const RECORDED_AHEAD: Split =
    Split { postgres: concat!(recorded_ahead!(), " for update of q"), sqlite: recorded_ahead!() };
