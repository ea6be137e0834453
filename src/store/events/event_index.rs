//! The index of event tasks, as the store keeps it: which tasks there are, and the version that says when one changed.
//!
//! A write to an event task bumps the version of its shard in its own transaction, and nothing else does. The matcher
//! reads what is newer than it knows; `fire_events` compares versions before it writes, so that a task which was
//! created before an event was published always sees it.

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};
use sqlx::types::Json;
use uuid::Uuid;

use crate::base::id::{Scope, Tenant};
use crate::domain::event::partition;
use crate::domain::task::{Task, TaskStatus};
use crate::domain::trigger::Trigger;
use crate::store::sql::sql;
use crate::store::tx::Tx;
use crate::store::{Split, Store, StoreError};

/// Tenants are spread over so many shards, by the rule that also spreads their events over partitions of the bus.
pub const EVENT_SHARDS: u32 = 16;

/// The shard of a tenant's event tasks.
pub fn event_shard(tenant: &str) -> i32 {
    partition(tenant, EVENT_SHARDS) as i32
}

/// An event task, as far as who matches has to know it.
#[derive(Debug, Clone, PartialEq)]
pub struct EventTask {
    /// Id of the task.
    pub task_id: Uuid,
    /// The tenant that owns the task.
    pub tenant_id: String,
    /// Name of the task, for expressions.
    pub name: String,
    /// Metadata of the task, for expressions.
    pub metadata: Map<String, Value>,
    /// Epoch of the task, which grows when fires become void.
    pub epoch: i64,
    /// Whether the task fires.
    pub status: TaskStatus,
    /// As stored: one that can't be read must not keep the others from firing.
    pub trigger: Value,
    /// Automatic fires that the task may have in all.
    pub max_runs: Option<i64>,
}

/// Newer tasks of a shard.
#[derive(Debug, Clone, PartialEq)]
pub struct EventTaskChanges {
    /// All that was known before is to be forgotten first.
    pub anew: bool,
    /// Tasks that wait for events.
    pub live: Vec<EventTask>,
    /// Tasks that wait for events no more.
    pub gone: Vec<Uuid>,
    /// The version that is known once this is taken in.
    pub version: i64,
    /// Whether more is newer still.
    pub more: bool,
}

#[derive(sqlx_macros::FromRow)]
struct Row {
    task_id: Uuid,
    tenant_id: Option<String>,
    name: Option<String>,
    metadata: Option<Json<Map<String, Value>>>,
    epoch: Option<i64>,
    status: Option<String>,
    trigger: Option<Json<Value>>,
    max_runs: Option<Json<Option<i64>>>,
}

/// Event tasks as they are read. SQLite keeps tasks as texts: one that is no JSON must not hold up the others.
const COLUMNS: &str = "
    select e.task_id, e.version, t.tenant_id, t.name, {spec} -> 'metadata' as metadata, t.epoch, t.status,
           {spec} -> 'trigger' as trigger, {spec} -> 'max_runs' as max_runs";
const READABLE_SPEC: &str = "(case when json_valid(t.spec) then t.spec end)";
const NEWER_TASKS: &str = sql!(
    COLUMNS,
    "  from event_tasks e
       left join tasks t on t.id = e.task_id and e.live
      where e.shard = $1 and e.version > $2
      order by e.version
      limit $3"
);
const NEWER: Split =
    Split { postgres: sql!(NEWER_TASKS; "{spec}" = "t.spec"), sqlite: sql!(NEWER_TASKS; "{spec}" = READABLE_SPEC) };
const TASKS_OF: &str = sql!(
    COLUMNS,
    "  from tasks t join event_tasks e on e.task_id = t.id and e.live
      where t.tenant_id = $1 and t.id > $2
      order by t.id
      limit $3"
);
const OF_TENANT: Split =
    Split { postgres: sql!(TASKS_OF; "{spec}" = "t.spec"), sqlite: sql!(TASKS_OF; "{spec}" = READABLE_SPEC) };

/// Whether a task is in the index: its trigger goes by events, and it may fire, now or when it is resumed.
pub(in crate::store) fn is_indexed(task: &Task) -> bool {
    matches!(task.spec.trigger, Trigger::Event(_)) && matches!(task.status, TaskStatus::Active | TaskStatus::Paused)
}

pub(in crate::store) const BUMP: &str = "
    insert into event_index (shard, version) values ($1, 1)
    on conflict (shard) do update set version = event_index.version + 1
    returning version";

pub(in crate::store) const INDEX: &str = "
    insert into event_tasks (task_id, shard, version, live, changed_at) values ($1, $2, $3, $4, $5)
    on conflict (task_id) do update
       set shard = excluded.shard, version = excluded.version, live = excluded.live, changed_at = excluded.changed_at";

/// Records that an event task has changed. The last statement of its transaction: until it ends, others of the shard
/// wait.
pub(in crate::store) async fn index_event_task(
    tx: &mut Tx<'_>,
    task_id: Uuid,
    tenant: &str,
    live: bool,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let shard = event_shard(tenant);
    let version: i64 = tx.query(BUMP).bind(shard).scalar().await?;
    tx.query(INDEX).bind(task_id).bind(shard).bind(version).bind(live).bind(now).execute().await?;
    Ok(())
}

impl Store {
    /// Changes of a shard since `known`; up to `limit` tasks, oldest change first. 0 knows nothing. `goes_on`: it is
    /// the next page of a reading that has begun, and is not begun anew.
    pub async fn event_tasks(
        &self,
        shard: i32,
        known: i64,
        limit: i64,
        goes_on: bool,
    ) -> Result<EventTaskChanges, StoreError> {
        let index: Option<(i64, i64)> = self
            .db
            .read()
            .await?
            .query("select version, pruned_version from event_index where shard = $1")
            .bind(shard)
            .optional()
            .await?;
        let (version, pruned) = index.unwrap_or_default();
        let anew = !goes_on && known > 0 && known < pruned;
        let known = if anew { 0 } else { known };
        let mut read = self.db.read().await?;
        let rows = read.query(NEWER).bind(shard).bind(known).bind(limit).rows().await?;
        let newest: Option<i64> = rows.last_column("version")?;
        read.end().await?;
        let (rows, others) = self.unreadable.partition_readable("tasks", &rows, Row::checked);
        let more = (rows.len() + others.len()) as i64 == limit;
        let newest = newest.unwrap_or(known);
        let mut changes = EventTaskChanges {
            anew,
            live: Vec::with_capacity(rows.len()),
            // one that can't be read fires no more, and the others of its shard go on
            gone: others,
            version: if more { newest } else { version.max(newest) },
            more,
        };
        for row in rows {
            let task_id = row.task_id;
            match row.task() {
                Some(task) => changes.live.push(task),
                None => changes.gone.push(task_id),
            }
        }
        Ok(changes)
    }

    /// The event tasks of a tenant that are active or paused and can be read, by their ids, after one; up to `limit`.
    pub async fn event_tasks_of(
        &self,
        tenant: &Tenant,
        after: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<EventTask>, StoreError> {
        let mut read = self.db.read().await?;
        let rows =
            read.query(OF_TENANT).bind(tenant.as_str()).bind(after.unwrap_or_default()).bind(limit).rows().await?;
        read.end().await?;
        let (rows, _) = self.unreadable.partition_readable::<_, _, Uuid>("tasks", &rows, Row::checked);
        Ok(rows.into_iter().filter_map(Row::task).collect())
    }

    /// Forgets tasks of the index that were gone before `before`; who knows less than that reads its shard anew.
    pub async fn forget_event_tasks(&self, before: DateTime<Utc>, limit: i64) -> Result<u64, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let gone: Vec<(i32, i64)> = tx
            .query(
                "select shard, max(version) from (
                    select shard, version from event_tasks where not live and changed_at < $1
                     order by version limit $2) old
                  group by shard order by shard",
            )
            .bind(before)
            .bind(limit)
            .all()
            .await?;
        let mut forgotten = 0;
        for (shard, version) in gone {
            tx.query("update event_index set pruned_version = $2 where shard = $1 and pruned_version < $2")
                .bind(shard)
                .bind(version)
                .execute()
                .await?;
            forgotten += tx
                .query("delete from event_tasks where shard = $1 and version <= $2 and not live")
                .bind(shard)
                .bind(version)
                .execute()
                .await?;
        }
        write.commit().await?;
        Ok(forgotten)
    }
}

impl Row {
    /// The row, if all is there that a task is matched by, or the task is gone.
    fn checked(self) -> Result<Row, StoreError> {
        let is_there = self.name.is_some() && self.metadata.is_some() && self.trigger.is_some();
        let is_known = self.status.as_deref().is_some_and(|status| TaskStatus::parse(status).is_some());
        match self.tenant_id.is_none() || (is_there && is_known) {
            true => Ok(self),
            false => Err(StoreError::Corrupt("its status or its specification can't be read".into())),
        }
    }

    /// `None`: the task is gone.
    fn task(self) -> Option<EventTask> {
        Some(EventTask {
            task_id: self.task_id,
            tenant_id: self.tenant_id?,
            name: self.name?,
            metadata: self.metadata?.0,
            epoch: self.epoch?,
            status: TaskStatus::parse(&self.status?)?,
            trigger: self.trigger?.0,
            max_runs: self.max_runs.and_then(|most| most.0),
        })
    }
}
