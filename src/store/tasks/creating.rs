//! Storing new tasks, one at a time or many: the task, its due row, the credentials that it names, and its place in the
//! index of event tasks, all or nothing.
//!
//! On Postgres a task without an idempotency key is one statement, and so is a batch, because a round trip costs as much
//! as the insert. A key that the tenant has already keeps a task from being stored, whoever stored the other and when:
//! the database's own unique index says so, so two imports of one file at once make each task once. A key that an export
//! made for a task without one stands for the task with the id in it, too (see [`exported_id`]): that one is asked for
//! before, for no task ever gets the id of another.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::domain::task::{Task, exported_id, named_by};
use crate::domain::trigger;
use crate::store::credentials::add_credentials;
use crate::store::db::flow::QueueFlow;
use crate::store::db::sqlite_batch;
use crate::store::db::text::{document, optional, text};
use crate::store::db::{Db, connection, fault, with_timeout};
use crate::store::events::event_index::{event_shard, index_event_task, is_indexed};
use crate::store::ops::idempotency::{Idempotency, StoredAnswer, once};
use crate::store::sql::sql;
use crate::store::tx::{Tx, TxQuery};
use crate::store::{Store, StoreError, Topic};

/// Tasks of several callers that go in one statement, at most.
pub(in crate::store) const TOGETHER: usize = 100;

/// A new task as `Task::new` made it, with the nominal instant of its first fire.
pub type NewTask = (Task, Option<DateTime<Utc>>);

const INSERT: &str = "
    insert into tasks (id, tenant_id, key, name, trigger_type, spec, status, status_reason, epoch, version, anchor_at,
                       active_since, zone_database, created_at, updated_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $14) ";

/// Leaves a task out whose key its tenant has.
const INSERT_NEW: &str = sql!(INSERT, "on conflict (tenant_id, key) where key is not null do nothing");

/// In a transaction: writes the rows of a task by one of the statements above; answers how many tasks that made, one or
/// none.
async fn insert_task(
    tx: &mut Tx<'_>,
    insert: &'static str,
    task: &Task,
    nominal_at: Option<DateTime<Utc>>,
) -> Result<u64, StoreError> {
    let made = with_columns(tx.query(insert), task)?.execute().await?;
    if made == 1 {
        tx.query(
            "insert into due (task_id, tenant_id, kind, next_at, nominal_at, epoch) values ($1, $2, $3, $4, $5, $6)",
        )
        .bind(task.id)
        .bind(&task.tenant_id)
        .bind(task.spec.trigger.kind())
        .bind(task.next_fire_at)
        .bind(nominal_at)
        .bind(task.epoch)
        .execute()
        .await?;
        add_credentials(tx, task).await?;
    }
    Ok(made)
}

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
            return Err(taken(task));
        }
        self.admit_task(task, idempotency).await?;
        let answer = match &self.db {
            Db::Postgres { .. } if idempotency.is_none() && is_simple(task) => {
                self.create_batched((task.clone(), nominal_at)).await.map(StoredAnswer::Done)
            }
            _ => self.create_in_transaction(task, nominal_at, idempotency).await,
        };
        let answer = self.refusal(answer).map_err(|error| match error {
            StoreError::Conflict(_) if task.key.is_some() => taken(task),
            error => error,
        })?;
        self.notify(Topic::Due);
        Ok(answer)
    }

    /// Stores a task together with those that others store at the same time. Like an import, the statement holds rows of
    /// several tenants, so that Postgres confines it to none of them: each row brings the tenant of its task.
    async fn create_batched(&self, task: NewTask) -> Result<(), StoreError> {
        let store = self.clone();
        let answer = self.creating.submit(task, |tasks| async move { store.create_each(&tasks).await });
        answer.await.unwrap_or_else(|| Err(StoreError::Unavailable("the request was broken off".into())))
    }

    /// Stores tasks that stand alone, in one statement as long as none of them is at fault.
    async fn create_each(&self, tasks: &[NewTask]) -> Vec<Result<(), StoreError>> {
        if tasks.len() > 1 {
            match self.try_create_tasks(tasks).await {
                Ok(made) => {
                    let taken = || StoreError::Conflict("the key is taken".into());
                    return made.into_iter().map(|made| if made { Ok(()) } else { Err(taken()) }).collect();
                }
                // the others are not to pay for a tenant that has all it may have
                Err(StoreError::Quota(over)) if tasks.iter().any(|(task, _)| task.tenant_id != over.tenant) => {
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
        for (task, nominal_at) in tasks {
            answers.push(self.create_one(task, *nominal_at).await);
        }
        answers
    }

    /// Stores the tasks of one tenant one by one, and those of the others together.
    async fn create_tenant_first(&self, tasks: &[NewTask], tenant: &str) -> Vec<Result<(), StoreError>> {
        let others: Vec<NewTask> = tasks.iter().filter(|(task, _)| task.tenant_id != tenant).cloned().collect();
        let mut others = Box::pin(self.create_each(&others)).await.into_iter();
        let mut answers = Vec::with_capacity(tasks.len());
        for (task, nominal_at) in tasks {
            answers.push(match task.tenant_id == tenant {
                true => self.create_one(task, *nominal_at).await,
                false => others.next().unwrap_or_else(|| Err(StoreError::Unavailable("no answer".into()))),
            });
        }
        answers
    }

    /// By a statement that confines itself.
    async fn create_one(&self, task: &Task, nominal_at: Option<DateTime<Utc>>) -> Result<(), StoreError> {
        match &self.db {
            Db::Postgres { quick, waits, .. } => {
                with_timeout(insert_simple(&mut *connection("quick", quick, waits).await?, task, nominal_at)).await?;
                fault()?;
                Ok(())
            }
            Db::Sqlite { .. } => self.create_in_transaction(task, nominal_at, None).await.map(drop),
        }
    }

    async fn create_in_transaction(
        &self,
        task: &Task,
        nominal_at: Option<DateTime<Utc>>,
        idempotency: Option<&Idempotency>,
    ) -> Result<StoredAnswer<()>, StoreError> {
        let mut write = self.db.write_unconfined(Some(task.tenant_id.as_str())).await?;
        let tx = &mut write.tx();
        if let Some(answer) = once(tx, idempotency, task.created_at).await? {
            return Ok(answer);
        }
        write.set_rls_tenant(Some(task.tenant_id.as_str())).await?;
        let tx = &mut write.tx();
        insert_task(tx, INSERT, task, nominal_at).await?;
        if is_indexed(task) {
            index_event_task(tx, task.id, &task.tenant_id, true, task.created_at).await?;
        }
        write.commit().await?;
        Ok(StoredAnswer::Done(()))
    }

    /// Stores new tasks, of any tenants, in one transaction; answers for each whether it was stored. One whose key its
    /// tenant has already, or that comes before it in the batch, is left out. Any other fault stores none of them, and so
    /// does a quota.
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
        let _turn = self.acquire_bulk(tenant, tasks.len()).await;
        let made = self.refusal(self.try_create_tasks(tasks).await);
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

    async fn try_create_tasks(&self, tasks: &[NewTask]) -> Result<Vec<bool>, StoreError> {
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let made: HashSet<Uuid> = match &self.db {
            Db::Postgres { pool, .. } if tasks.iter().any(|(task, _)| is_indexed(task)) => {
                let mut write = pool.acquire_fair(flow_of(tasks)).await?.begin().await?;
                fault()?;
                let made = create_batch(&mut write, tasks).await?;
                index_batch(&mut write, tasks, &made).await?;
                write.commit().await?;
                fault()?;
                made
            }
            Db::Postgres { quick, waits, .. } => {
                let made = with_timeout(create_batch(&mut *connection("quick", quick, waits).await?, tasks)).await?;
                fault()?;
                made
            }
            Db::Sqlite { writer, .. } => {
                let mut write = writer.begin(flow_of(tasks)).await?;
                fault()?;
                let tx = &mut Tx::Sqlite(&mut write);
                let mut made = HashSet::with_capacity(tasks.len());
                for (task, nominal_at) in tasks {
                    if insert_task(tx, INSERT_NEW, task, *nominal_at).await? == 1 {
                        made.insert(task.id);
                    }
                }
                for (task, _) in tasks.iter().filter(|(task, _)| made.contains(&task.id) && is_indexed(task)) {
                    index_event_task(tx, task.id, &task.tenant_id, true, task.created_at).await?;
                }
                write.commit().await?;
                fault()?;
                made
            }
        };
        self.notify(Topic::Due);
        Ok(tasks.iter().map(|(task, _)| made.contains(&task.id)).collect())
    }
}

/// The tenant in whose turn these tasks are stored.
fn flow_of(tasks: &[NewTask]) -> QueueFlow {
    QueueFlow::of(tasks.first().map(|(task, _)| task.tenant_id.as_str()))
}

/// That the tenant has a task with the key of this one.
pub(in crate::store) fn taken(task: &Task) -> StoreError {
    StoreError::Conflict(format!("there is a task with the key `{}`", task.key.as_deref().unwrap_or_default()))
}

/// Whether all that belongs to a task is its due row.
fn is_simple(task: &Task) -> bool {
    !is_indexed(task) && named_by(&task.spec).is_empty()
}

const CREATE_ALONE: &str = include_str!("../sql/create_task.postgres.sql");

/// Gives a statement that stores a task the columns of its row, in their order.
fn with_columns<'t>(insert: TxQuery<'t>, task: &Task) -> Result<TxQuery<'t>, StoreError> {
    Ok(insert
        .bind(task.id)
        .bind(&task.tenant_id)
        .bind(optional(task.key.as_deref()))
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
        .bind(task.created_at))
}

async fn insert_simple(
    conn: &mut PgConnection,
    task: &Task,
    nominal_at: Option<DateTime<Utc>>,
) -> Result<(), StoreError> {
    with_columns(Tx::Postgres(conn).into_query(CREATE_ALONE), task)?
        .bind(task.next_fire_at)
        .bind(nominal_at)
        .execute()
        .await?;
    Ok(())
}

/// Rows go in by tenant and key, so that two batches that share keys wait for each other in one order.
async fn create_batch(conn: &mut PgConnection, tasks: &[NewTask]) -> Result<HashSet<Uuid>, StoreError> {
    let mut rows: Vec<&NewTask> = tasks.iter().collect();
    rows.sort_by(|(a, _), (b, _)| (&a.tenant_id, &a.key).cmp(&(&b.tenant_id, &b.key)));
    let specs = rows.iter().map(|(task, _)| document(&task.spec)).collect::<Result<Vec<_>, _>>()?;
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
        .bind(specs)
        .bind(rows.iter().map(|(task, _)| task.status.as_str()).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| optional(task.status_reason.as_deref())).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| task.epoch).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| task.version).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| task.anchor_at).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| task.active_since).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| task.created_at).collect::<Vec<_>>())
        .bind(rows.iter().map(|(task, _)| task.next_fire_at).collect::<Vec<_>>())
        .bind(rows.iter().map(|(_, nominal_at)| *nominal_at).collect::<Vec<_>>())
        .bind(trigger::zone_database_version())
        .bind(named.0)
        .bind(named.1)
        .bind(named.2)
        .bind(named.3)
        .fetch_all(conn)
        .await?;
    Ok(made.into_iter().collect())
}

/// The last statement of its transaction: until it ends, others of the same shards wait.
async fn index_batch(conn: &mut PgConnection, tasks: &[NewTask], made: &HashSet<Uuid>) -> Result<(), StoreError> {
    let indexed: Vec<&Task> =
        tasks.iter().map(|(task, _)| task).filter(|task| made.contains(&task.id) && is_indexed(task)).collect();
    let Some(newest) = indexed.iter().map(|task| task.created_at).max() else { return Ok(()) };
    sqlx::query(include_str!("../sql/index_tasks.postgres.sql"))
        .bind(indexed.iter().map(|task| task.id).collect::<Vec<_>>())
        .bind(indexed.iter().map(|task| event_shard(&task.tenant_id)).collect::<Vec<_>>())
        .bind(newest)
        .execute(conn)
        .await?;
    Ok(())
}
