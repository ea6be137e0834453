//! Storing new tasks, one at a time or many: the task, its due row, the credentials that it names, and its place in the
//! index of event tasks, all or nothing.
//!
//! On Postgres a task without an idempotency key is one statement, and so is a batch, because a round trip costs as
//! much as the insert. A key that the tenant has already keeps a task from being stored, whoever stored the other and
//! when: the database's own unique index says so, so two imports of one file at once make each task once. A key that an
//! export made for a task without one stands for the task with the id in it, too (see [`exported_id`]): that one is
//! asked for before, for no task ever gets the id of another.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::slice;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::base::compute::{ADMIN, IN_PLACE, steps_to_serialize};
use crate::domain::task::{Spec, Task, exported_id, named_by};
use crate::domain::trigger;
use crate::store::credentials::add_credentials;
use crate::store::db::flow::QueueFlow;
use crate::store::db::text::{StoredJson, optional, text};
use crate::store::db::{Db, connection, sqlite_batch, with_timeout};
use crate::store::events::event_index::{event_shard, index_event_task, is_indexed};
use crate::store::ops::idempotency::{Idempotency, StoredAnswer, once};
use crate::store::tx::Tx;
use crate::store::{Store, StoreError, Topic};

/// Tasks of several callers that go in one statement, at most.
pub(in crate::store) const TOGETHER: usize = 100;

/// A new task as `Task::new` made it, with the nominal instant of its first fire.
pub type NewTask = (Task, Option<DateTime<Utc>>);

/// A new task, and its spec as it is stored.
#[derive(Clone)]
pub(in crate::store) struct WrittenTask<'a> {
    new: Cow<'a, NewTask>,
    spec: StoredJson,
}

impl WrittenTask<'_> {
    fn task(&self) -> &Task {
        &self.new.0
    }

    fn nominal_at(&self) -> Option<DateTime<Utc>> {
        self.new.1
    }
}

const INSERT: &str = "
    insert into tasks (id, tenant_id, key, name, trigger_type, spec, status, status_reason, epoch, version, anchor_at,
                       active_since, zone_database, created_at, updated_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $14)
    on conflict (tenant_id, key) where key is not null do nothing";

impl Store {
    /// Stores a new task as `Task::new` made it, with the nominal instant of its first fire. [`StoreError::Conflict`]:
    /// its tenant has a task with its key. [`StoreError::Quota`]: its tenant may have no more.
    pub async fn create_task(
        &self,
        task: &Task,
        nominal_at: Option<DateTime<Utc>>,
        idempotency: Option<&Idempotency>,
    ) -> Result<StoredAnswer<()>, StoreError> {
        if !self.known_by_export(&[task]).await?.is_empty() {
            return Err(key_conflict(task));
        }
        self.admit_task(task, idempotency).await?;
        let spec = self.written_specs(&[task]).await?.remove(0);
        let new = WrittenTask { new: Cow::Owned((task.clone(), nominal_at)), spec };
        let answer = match (idempotency, &self.db) {
            (Some(asked), _) => self.create_once(&new, asked).await,
            (None, Db::Postgres { .. }) if is_simple(task) => self.create_batched(new).await.map(StoredAnswer::Done),
            (None, _) => self.create_alone(&new).await.map(StoredAnswer::Done),
        };
        let answer = self.refusal(answer).map_err(|error| match error {
            StoreError::Conflict(_) if task.key.is_some() => key_conflict(task),
            error => error,
        })?;
        self.notify(Topic::Due);
        Ok(answer)
    }

    /// Stores a task together with those that others store at the same time.
    async fn create_batched(&self, task: WrittenTask<'static>) -> Result<(), StoreError> {
        let store = self.clone();
        let answer = self.creating.submit(task, |tasks| async move { store.create_each(&tasks).await });
        answer.await.unwrap_or_else(|| Err(StoreError::Unavailable("the request was broken off".into())))
    }

    /// Stores tasks that stand alone, in one statement as long as none of them is at fault.
    async fn create_each(&self, tasks: &[WrittenTask<'_>]) -> Vec<Result<(), StoreError>> {
        if tasks.len() > 1 {
            match self.insert_tasks(tasks).await {
                Ok(made) => {
                    return tasks
                        .iter()
                        .zip(made)
                        .map(|(task, made)| made.then_some(()).ok_or_else(|| key_conflict(task.task())))
                        .collect();
                }
                // the others are not to pay for a tenant that has all it may have
                Err(StoreError::Quota(over)) if tasks.iter().any(|task| task.task().tenant_id != over.tenant) => {
                    return self.create_tenant_first(tasks, &over.tenant).await;
                }
                // it may have taken effect
                Err(StoreError::Unavailable(why)) => {
                    return tasks.iter().map(|_| Err(StoreError::Unavailable(why.clone()))).collect();
                }
                Err(_) => {}
            }
        }
        let mut answers = Vec::with_capacity(tasks.len());
        for task in tasks {
            answers.push(self.create_alone(task).await);
        }
        answers
    }

    /// Stores the tasks of one tenant one by one, and those of the others together.
    async fn create_tenant_first(&self, tasks: &[WrittenTask<'_>], tenant: &str) -> Vec<Result<(), StoreError>> {
        let others: Vec<WrittenTask<'_>> =
            tasks.iter().filter(|task| task.task().tenant_id != tenant).cloned().collect();
        let mut others = Box::pin(self.create_each(&others)).await.into_iter();
        let mut answers = Vec::with_capacity(tasks.len());
        for task in tasks {
            answers.push(match task.task().tenant_id == tenant {
                true => self.create_alone(task).await,
                false => others.next().unwrap_or_else(|| Err(StoreError::Unavailable("no answer".into()))),
            });
        }
        answers
    }

    async fn create_alone(&self, task: &WrittenTask<'_>) -> Result<(), StoreError> {
        let made = self.insert_tasks(slice::from_ref(task)).await?;
        if made == [true] { Ok(()) } else { Err(key_conflict(task.task())) }
    }

    /// Stores a task and the answer to the request for it.
    async fn create_once(&self, task: &WrittenTask<'_>, asked: &Idempotency) -> Result<StoredAnswer<()>, StoreError> {
        let Task { tenant_id, created_at, .. } = task.task();
        let mut write = self.db.write_unconfined(Some(tenant_id)).await?;
        let tx = &mut write.tx();
        if let Some(answer) = once(tx, Some(asked), *created_at).await? {
            return Ok(answer);
        }
        if insert_rows(tx, slice::from_ref(task)).await?.is_empty() {
            return Err(key_conflict(task.task()));
        }
        write.commit().await?;
        Ok(StoredAnswer::Done(()))
    }

    /// Stores new tasks, of any tenants, in one transaction; answers for each whether it was stored. One whose key its
    /// tenant has already, or that comes before it in the batch, is left out. Any other fault stores none of them, and
    /// so does a quota.
    pub async fn create_tasks(&self, tasks: &[NewTask]) -> Result<Vec<bool>, StoreError> {
        let mut known = self.known_by_export(&tasks.iter().map(|(task, _)| task).collect::<Vec<_>>()).await?;
        let new = tasks.iter().map(|(task, _)| task).filter(|task| !known.contains(&task.id));
        known.extend(self.admit_tasks(&new.collect::<Vec<_>>()).await?);
        if known.is_empty() {
            return self.create_admitted_tasks(tasks).await;
        }
        let others: Vec<NewTask> = tasks.iter().filter(|(task, _)| !known.contains(&task.id)).cloned().collect();
        let mut made = self.create_admitted_tasks(&others).await?.into_iter();
        let made = tasks.iter().map(|(task, _)| !known.contains(&task.id) && made.next().unwrap_or_default());
        Ok(made.collect())
    }

    /// The ids of those that their tenant has already as the task that their key was exported for.
    async fn known_by_export(&self, tasks: &[&Task]) -> Result<HashSet<Uuid>, StoreError> {
        let exported = |task: &Task| task.key.as_deref().and_then(exported_id);
        let ids: Vec<Uuid> = tasks.iter().filter_map(|task| exported(task)).collect();
        if ids.is_empty() {
            return Ok(HashSet::new());
        }
        let owners: Vec<(Uuid, String)> = match &self.db {
            Db::Postgres { quick, waits, .. } => {
                let mut held = connection("quick", quick, waits).await?;
                let owners = sqlx::query_as("select id, tenant_id from tasks where id = any($1)").bind(&ids);
                owners.fetch_all(&mut *held).await?
            }
            Db::Sqlite { readers, .. } => {
                sqlite_batch::read(readers, "select id, tenant_id from tasks where id in ", &ids).await?
            }
        };
        let owners: HashMap<Uuid, String> = owners.into_iter().collect();
        let is_known = |task: &&&Task| exported(task).and_then(|id| owners.get(&id)) == Some(&task.tenant_id);
        Ok(tasks.iter().filter(is_known).map(|task| task.id).collect())
    }

    async fn create_admitted_tasks(&self, tasks: &[NewTask]) -> Result<Vec<bool>, StoreError> {
        let tenant = tasks.first().map_or("", |(task, _)| task.tenant_id.as_str());
        let specs = self.written_specs(&tasks.iter().map(|(task, _)| task).collect::<Vec<_>>()).await?;
        let written = tasks.iter().zip(specs).map(|(new, spec)| WrittenTask { new: Cow::Borrowed(new), spec });
        let written: Vec<WrittenTask<'_>> = written.collect();
        let _turn = self.acquire_bulk(tenant, tasks.len()).await;
        let made = self.refusal(self.insert_tasks(&written).await);
        match (made, &self.db) {
            // SQLite counts row by row, so that its number has those of the batch in it that came first
            (Err(StoreError::Quota(mut over)), Db::Sqlite { .. }) => {
                let has = self.quota_usage(&over.tenant).await?.standings[&over.quota].usage;
                over.usage = has.map_or(over.usage, |has| has.min(over.usage));
                Err(StoreError::Quota(over))
            }
            (made, _) => made,
        }
    }

    /// The specs of tasks as they are stored. Those of long ones are written on a computing thread, in the turn of the
    /// tenant.
    async fn written_specs(&self, tasks: &[&Task]) -> Result<Vec<StoredJson>, StoreError> {
        let specs: Vec<&Spec> = tasks.iter().map(|task| &task.spec).collect();
        if steps_to_serialize(&specs) <= IN_PLACE {
            return specs.into_iter().map(StoredJson::of).collect();
        }
        let tenant = tasks.first().map_or(ADMIN, |task| task.tenant_id.as_str());
        let specs: Vec<Spec> = specs.into_iter().cloned().collect();
        self.compute(tenant, move || specs.iter().map(StoredJson::of).collect()).await?
    }

    /// Stores tasks whose tenants may have them; answers for each whether it was stored. One without a place in the
    /// index of event tasks needs no transaction around its statement.
    async fn insert_tasks(&self, tasks: &[WrittenTask<'_>]) -> Result<Vec<bool>, StoreError> {
        let Some(first) = tasks.first() else { return Ok(Vec::new()) };
        let tenant = Some(first.task().tenant_id.as_str());
        let mut write = match tasks.iter().any(|task| is_indexed(task.task())) {
            true => self.db.write_unconfined(tenant).await?,
            false => self.db.write_quick(QueueFlow::of(tenant)).await?,
        };
        let made = insert_rows(&mut write.tx(), tasks).await?;
        write.commit().await?;
        self.notify(Topic::Due);
        Ok(tasks.iter().map(|task| made.contains(&task.task().id)).collect())
    }
}

/// That the tenant has a task with the key of this one.
pub(in crate::store) fn key_conflict(task: &Task) -> StoreError {
    StoreError::Conflict(format!("there is a task with the key `{}`", task.key.as_deref().unwrap_or_default()))
}

/// Whether all that belongs to a task is its due row.
fn is_simple(task: &Task) -> bool {
    !is_indexed(task) && named_by(&task.spec).is_empty()
}

/// Writes the rows of tasks, each with all that belongs to it; answers the ids of those that are new. The index of
/// event tasks comes last: until the transaction ends, others of the same shards wait.
async fn insert_rows(tx: &mut Tx<'_>, tasks: &[WrittenTask<'_>]) -> Result<HashSet<Uuid>, StoreError> {
    let made = match tx {
        Tx::Postgres(conn) => with_timeout(insert_together(conn, tasks)).await?,
        Tx::Sqlite(_) => insert_each(tx, tasks).await?,
    };
    let new = tasks.iter().map(WrittenTask::task).filter(|task| made.contains(&task.id) && is_indexed(task));
    let indexed: Vec<&Task> = new.collect();
    match tx {
        Tx::Postgres(conn) => with_timeout(index_together(conn, &indexed)).await?,
        Tx::Sqlite(_) => {
            for task in indexed {
                index_event_task(tx, task.id, &task.tenant_id, true, task.created_at).await?;
            }
        }
    }
    Ok(made)
}

async fn insert_each(tx: &mut Tx<'_>, tasks: &[WrittenTask<'_>]) -> Result<HashSet<Uuid>, StoreError> {
    let mut made = HashSet::with_capacity(tasks.len());
    for written in tasks {
        let task = written.task();
        let insert = tx
            .query(INSERT)
            .bind(task.id)
            .bind(&task.tenant_id)
            .bind(optional(task.key.as_deref()))
            .bind(text(&task.name))
            .bind(task.spec.trigger.kind())
            .bind(written.spec.json())
            .bind(task.status.as_str())
            .bind(optional(task.status_reason.as_deref()))
            .bind(task.epoch)
            .bind(task.version)
            .bind(task.anchor_at)
            .bind(task.active_since)
            .bind(trigger::zone_database_version())
            .bind(task.created_at);
        if insert.execute().await? == 0 {
            continue;
        }
        tx.query(
            "insert into due (task_id, tenant_id, kind, next_at, nominal_at, epoch) values ($1, $2, $3, $4, $5, $6)",
        )
        .bind(task.id)
        .bind(&task.tenant_id)
        .bind(task.spec.trigger.kind())
        .bind(task.next_fire_at)
        .bind(written.nominal_at())
        .bind(task.epoch)
        .execute()
        .await?;
        add_credentials(tx, task).await?;
        made.insert(task.id);
    }
    Ok(made)
}

/// Rows go in by tenant and key, so that two batches that share keys wait for each other in one order.
async fn insert_together(conn: &mut PgConnection, tasks: &[WrittenTask<'_>]) -> Result<HashSet<Uuid>, StoreError> {
    let mut rows: Vec<(&Task, &WrittenTask<'_>)> = tasks.iter().map(|written| (written.task(), written)).collect();
    rows.sort_by(|(a, _), (b, _)| (&a.tenant_id, &a.key).cmp(&(&b.tenant_id, &b.key)));
    let tenant = rows.first().map(|(task, _)| task.tenant_id.as_str());
    let is_of_one = rows.last().map(|(task, _)| task.tenant_id.as_str()) == tenant;
    let mut named = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (task, _) in &rows {
        for (service, account) in named_by(&task.spec) {
            named.0.push(task.id);
            named.1.push(task.tenant_id.as_str());
            named.2.push(service);
            named.3.push(account);
        }
    }
    let made: Vec<Uuid> = sqlx::query_scalar(include_str!("../sql/create_tasks.postgres.sql"))
        .bind(rows.iter().map(|(task, _)| task.id).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| task.tenant_id.as_str()).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| optional(task.key.as_deref())).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| text(&task.name)).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| task.spec.trigger.kind()).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, written)| written.spec.json()).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| task.status.as_str()).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| optional(task.status_reason.as_deref())).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| task.epoch).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| task.version).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| task.anchor_at).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| task.active_since).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| task.created_at).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| task.next_fire_at).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, written)| written.nominal_at()).collect::<Vec<_>>())
        .bind(trigger::zone_database_version())
        .bind(named.0)
        .bind(named.1)
        .bind(named.2)
        .bind(named.3)
        .bind(tenant.filter(|_| is_of_one))
        .fetch_all(conn)
        .await?;
    Ok(made.into_iter().collect())
}

async fn index_together(conn: &mut PgConnection, tasks: &[&Task]) -> Result<(), StoreError> {
    let Some(newest) = tasks.iter().map(|task| task.created_at).max() else { return Ok(()) };
    sqlx::query(include_str!("../sql/index_tasks.postgres.sql"))
        .bind(tasks.iter().map(|task| task.id).collect::<Vec<_>>())
        .bind(tasks.iter().map(|task| event_shard(&task.tenant_id)).collect::<Vec<_>>())
        .bind(newest)
        .execute(conn)
        .await?;
    Ok(())
}
