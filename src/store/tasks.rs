//! Tasks and their next instants: reading, deleting. New ones are in `creating`, what changes them is in `changes`.

pub(super) mod changes;
pub(super) mod conditions;
pub(super) mod creating;
pub(super) mod disabling;
pub(super) mod failing;
pub(super) mod fires;
pub(super) mod names;
mod orders;
pub(super) mod row;
pub(super) mod task_cache;
mod task_order;
pub(super) mod task_state;
pub(super) mod tenant_turns;
pub(super) mod upcoming;
pub(super) mod zones;

use std::collections::HashMap;

use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::run::RunState;
use crate::domain::task::{Task, TaskStatus, exported_id};
use crate::domain::trigger::Trigger;
use crate::store::approvals::close_questions;
use crate::store::db::listing::{PAGE_BYTES, RowPage, UNBOUNDED, fitting, push_page};
use crate::store::db::text::text;
use crate::store::db::{Db, connection, sqlite_batch};
use crate::store::events::closing::FORGET_TASK;
use crate::store::events::event_index::index_event_task;
use crate::store::ops::depths::COUNTED_TO;
use crate::store::runs::requests::LOCK_DUE;
use crate::store::runs::slots::log_ends_outside_execution;
use crate::store::sql::sql;
use crate::store::tasks::row::TaskRow;
use crate::store::tx::{Rows, StatementBuilder, Tx};
use crate::store::{Split, Store, StoreError, Topic};

/// Which tasks to list. Newest first, after the task `before`.
#[derive(Debug, Clone, Default)]
pub struct TaskFilter {
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// The stable key, whole; of a task without one, that of its export.
    pub key: Option<String>,
    /// Only with this status.
    pub status: Option<TaskStatus>,
    /// Only with this kind of trigger.
    pub trigger_type: Option<String>,
    /// Part of the name; the case of ASCII letters does not matter, that of others as the database has it.
    pub q: Option<String>,
    /// Only ids before this one, for the next page.
    pub before: Option<Uuid>,
    /// Most rows of the page.
    pub limit: i64,
}

/// Tasks that a page by a filter looks through at most. Those that are paused or disabled are looked for among such
/// tasks alone.
pub const SCANNED_TASKS: i64 = 5_000;
/// Tasks with their due rows; a condition follows.
pub(super) const SELECT_TASK: &str = sql!(COLUMNS, FROM_TASKS);
/// One task in a scope, with its length.
const ONE: &str = sql!(
    COLUMNS,
    ", cast(t.stored_bytes as bigint) as wide",
    FROM_TASKS,
    "where t.id = $1 and ($2 is null or t.tenant_id = $2)"
);
const COLUMNS: &str = "
    select t.id, t.tenant_id, t.key, t.name, t.spec, t.status, t.status_reason, t.faulty_part, t.disabled_by, t.awaited_service,
           t.awaited_account, t.epoch, t.version, t.anchor_at, t.active_since, d.next_at, d.nominal_at, d.run_count, d.fire_count, t.created_at, t.updated_at";
const FROM_TASKS: &str = "
      from tasks t join due d on d.task_id = t.id ";

/// Locks the task's `due` row, the first in the order, and then reads the task: in a statement of its own, because one
/// that had to wait for the lock would see the task as it was before. SQLite's writer is alone anyway. A conversation
/// is none.
pub(super) async fn lock_task(tx: &mut Tx<'_>, id: Uuid, scope: &Scope) -> Result<TaskRow, StoreError> {
    tx.query(LOCK_DUE).bind(id).execute().await?;
    let row: Option<TaskRow> = tx
        .query(sql!(SELECT_TASK, "where t.id = $1 and ($2 is null or t.tenant_id = $2)"))
        .bind(id)
        .bind(scope.tenant())
        .optional()
        .await?;
    row.filter(|row| !matches!(row.spec.0.trigger, Trigger::Chat(_))).ok_or(StoreError::NotFound)
}

/// The beginning of a read by listed keys.
pub(super) const LISTED: &str = sql!(SELECT_TASK, "where t.id in ");

/// Beginning of a page's statement: the rows that match are measured.
const MEASURED: &str = "with page as materialized (
    select t.id, octet_length(cast(t.spec as text)) + coalesce(octet_length(t.status_reason), 0) as bytes
      from tasks t where true";
const FITTING: Split = fitting!(SELECT_TASK, "t.id");

impl TaskFilter {
    /// Whether tasks are passed over that no index tells from those that are wanted.
    fn is_looked_for(&self) -> bool {
        self.key.is_none() && (self.status.is_some() || self.trigger_type.is_some() || self.q.is_some())
    }
}

/// Adds which tasks are looked through: whose, and from which on; answers what the order begins with.
fn push_place(query: &mut StatementBuilder<'_>, scope: &Scope, filter: &TaskFilter) -> &'static str {
    let (mut order, mut key) = ("", None);
    for tenant in [scope.tenant(), filter.tenant.as_deref()].into_iter().flatten() {
        query.push_key("t.tenant_id", text(tenant).into_owned());
        (order, key) = ("t.tenant_id desc, ", Some(("t.tenant_id", text(tenant).into_owned())));
    }
    if let Some(before) = filter.before {
        query.push_before(key, "t.id", before);
    }
    if matches!(filter.status, Some(TaskStatus::Paused | TaskStatus::Disabled)) {
        // as their index has it, which is far smaller than that of all tasks
        query.push(" and t.status in ('paused', 'disabled')");
    }
    order
}

/// The id down to which a page looks, conversations counted; `None`: to the end.
async fn oldest_scanned(tx: &mut Tx<'_>, scope: &Scope, filter: &TaskFilter) -> Result<Option<Uuid>, sqlx::Error> {
    let mut query = tx.build("select t.id from tasks t where true");
    let order = push_place(&mut query, scope, filter);
    query.push(" order by ").push(order).push("t.id desc limit 1 offset ").push_bind(SCANNED_TASKS - 1);
    query.finish().optional_scalar().await
}

impl Store {
    /// Whether all tasks are of one tenant, or there is none: what the first and the last of an index say.
    pub async fn has_single_tenant(&self) -> Result<bool, StoreError> {
        let (first, last): (Option<String>, Option<String>) = self
            .db
            .read_quick()
            .await?
            .query(
                "select (select tenant_id from tasks order by tenant_id limit 1),
                        (select tenant_id from tasks order by tenant_id desc limit 1)",
            )
            .one()
            .await?;
        Ok(first == last)
    }

    /// One task; a conversation is none.
    ///
    /// # Errors
    /// `NotFound`: there is none in the scope.
    pub async fn get_task(&self, scope: &Scope, id: Uuid) -> Result<Task, StoreError> {
        self.find_task(scope, id).await?.filter(|task| !task.is_chat()).ok_or(StoreError::NotFound)
    }

    /// One task, or conversation, if it is there.
    pub async fn find_task(&self, scope: &Scope, id: Uuid) -> Result<Option<Task>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let rows = read.query(ONE).bind(id).bind(scope.tenant()).rows().await?;
        read.end().await?;
        let row: Option<TaskRow> = self.decode_first_row(scope, rows).await?;
        row.map(TaskRow::task).transpose()
    }

    /// Tasks by their ids; those that are gone are left out, and those that can't be read: one task that is damaged
    /// must not keep the runs of others from being started.
    pub(super) async fn tasks_by_id(&self, ids: &[Uuid]) -> Result<HashMap<Uuid, Task>, StoreError> {
        self.readable_by_id("tasks", ids, |ids| self.all_tasks_by_id(ids)).await
    }

    async fn all_tasks_by_id(&self, ids: &[Uuid]) -> Result<HashMap<Uuid, Task>, StoreError> {
        let rows: Vec<TaskRow> = match &self.db {
            Db::Postgres { quick, waits, .. } => {
                let mut held = connection("quick", quick, waits).await?;
                // of both tables no more is read than these, whichever comes first
                let by_id = sql!(SELECT_TASK, "where t.id = any($1) and d.task_id = any($1)");
                sqlx::query_as(by_id).bind(ids).fetch_all(&mut *held).await?
            }
            Db::Sqlite { readers, .. } => sqlite_batch::read(readers, LISTED, ids).await?,
        };
        rows.into_iter().map(|row| Ok((row.id, row.task()?))).collect()
    }

    /// Tasks that match, newest first; those that can't be read are left out.
    pub async fn list_tasks(&self, scope: &Scope, filter: &TaskFilter) -> Result<Vec<Task>, StoreError> {
        Ok(self.page_of_tasks(scope, filter, UNBOUNDED).await?.rows)
    }

    /// A page of tasks that match, newest first; those that can't be read are left out. One by a status, a kind of
    /// trigger or a part of the name looks through [`SCANNED_TASKS`] at most, and may go on with fewer than were asked
    /// for.
    pub async fn tasks_page(&self, scope: &Scope, filter: &TaskFilter) -> Result<RowPage<Task>, StoreError> {
        self.page_of_tasks(scope, filter, PAGE_BYTES).await
    }

    async fn page_of_tasks(&self, scope: &Scope, filter: &TaskFilter, bound: i64) -> Result<RowPage<Task>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let oldest = match bound == UNBOUNDED || !filter.is_looked_for() {
            true => None,
            false => oldest_scanned(&mut read.tx(), scope, filter).await?,
        };
        let mut query = read.build(MEASURED);
        let order = push_place(&mut query, scope, filter);
        if let Some(oldest) = oldest {
            query.push(" and t.id >= ").push_bind(oldest);
        }
        if let Some(key) = &filter.key {
            query.push(" and (t.key = ").push_bind(text(key).into_owned());
            if let Some(id) = exported_id(key) {
                query.push(" or (t.key is null and t.id = ").push_bind(id).push(")");
            }
            query.push(")");
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
        query.push(" and t.trigger_type <> 'chat'");
        push_page(&mut query, (order, "t.id"), filter.limit, (FITTING, bound));
        let rows = query.finish().rows().await?;
        read.end().await?;
        let (unreadable, limit, found) = (self.unreadable.clone(), filter.limit, rows.len() as i64);
        let read = move |rows: &Rows| RowPage::from_rows(&unreadable, "tasks", rows, limit, TaskRow::task);
        let mut page = self.decode_rows(scope.tenant(), rows, read).await?;
        if oldest.is_some() && found < limit && !page.is_cut {
            page.behind = oldest;
        }
        Ok(page)
    }

    /// Removes a task. Its finished runs stay, those that wait are cancelled, running ones are asked to end.
    pub async fn delete_task(&self, scope: &Scope, id: Uuid) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(scope).await?;
        let tx = &mut write.tx();
        let row = lock_task(tx, id, scope).await?;
        // The first look waits for whoever ends a run of the task; the second sees whom it handed the slot to, and
        // who went on because of an answer before none can any more. From then on the queue of the task stands still.
        tx.query(LOCK_QUEUE).bind(id).execute().await?;
        let mut parked: Vec<Uuid> = tx
            .query("delete from parked where task_id = $1 and reason <> 'overlap' returning run_id")
            .bind(id)
            .scalars()
            .await?;
        let queued: Vec<(Uuid, String)> = tx.query(LOCK_QUEUE).bind(id).all().await?;
        tx.query(
            "update queue set cancel_reason = $2 where task_id = $1 and state = 'started' and cancel_reason is null",
        )
        .bind(id)
        .bind(REASON_DELETED)
        .execute()
        .await?;
        tx.query("delete from queue where task_id = $1 and state <> 'started'").bind(id).execute().await?;
        tx.query("delete from slots where task_id = $1").bind(id).execute().await?;
        let behind: Vec<Uuid> =
            tx.query("delete from parked where task_id = $1 returning run_id").bind(id).scalars().await?;
        parked.extend(behind);
        let unstarted = queued.into_iter().filter(|(_, state)| state != "started").map(|(run_id, _)| run_id);
        let ended: Vec<Uuid> = unstarted.chain(parked).collect();
        for run_id in ended.iter().copied() {
            tx.query("update runs set state = 'cancelled', reason = $2, finished_at = $3 where id = $1")
                .bind(run_id)
                .bind(REASON_DELETED)
                .bind(now)
                .execute()
                .await?;
            close_questions(tx, run_id, now).await?;
        }
        for statement in FORGET_TASK {
            tx.query(statement).bind(id).execute().await?;
        }
        for statement in [
            "delete from due where task_id = $1",
            "delete from condition_state where task_id = $1",
            "delete from task_state where task_id = $1",
            "delete from task_alerts where task_id = $1",
            "delete from resumptions where task_id = $1",
            "delete from task_credentials where task_id = $1",
            "delete from approval_overrides where task_id = $1",
            "delete from tasks where id = $1",
        ] {
            tx.query(statement).bind(id).execute().await?;
        }
        if matches!(row.spec.0.trigger, Trigger::Event(_)) {
            index_event_task(tx, id, &row.tenant_id, false, now).await?;
        }
        write.commit().await?;
        log_ends_outside_execution(ended.len(), RunState::Cancelled, Some(id), Some(REASON_DELETED));
        self.notify(Topic::Cancels);
        Ok(())
    }

    /// How many tasks have each status. It counts [`COUNTED_TO`] tasks at most: where the counts come to as many, there
    /// may be more.
    pub async fn count_tasks(&self, scope: &Scope) -> Result<Vec<(String, i64)>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let mut query = read.build("select status, count(*) from (select status from tasks where true");
        if let Some(tenant) = scope.tenant() {
            query.push(" and tenant_id = ").push_bind(tenant);
        }
        query.push(" limit ").push_bind(COUNTED_TO).push(") as counted group by status order by status");
        let found = query.finish().all().await?;
        read.end().await?;
        Ok(found)
    }
}

/// Why runs of a task that was deleted ended.
const REASON_DELETED: &str = "task_deleted";

/// All of a task's runs that are queued, claimed or started.
const LOCK_QUEUE: Split = Split {
    postgres: "select run_id, state from queue where task_id = $1 order by run_id for update",
    sqlite: "select run_id, state from queue where task_id = $1 order by run_id",
};
