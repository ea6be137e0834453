//! Bytes that tenants have stored: how they are counted, and when a tenant may store no more.
//!
//! Triggers of the database count: whatever writes or deletes leaves a row with the difference, in the transaction that
//! it belongs to, so nothing is left out, and no writer waits for another one's row. [`Store::count_stored_bytes`] adds
//! these rows to the tenant's number, a bounded batch at a time. What is admitted goes by that number, not older than
//! [`MEMORY`], and by what this instance has admitted since it was read. What PostgreSQL held before there were these
//! triggers is counted by [`Store::count_older_rows`].
//!
//! [`MEMORY`]: super::quotas::MEMORY

mod scan;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::SqliteConnection;
use sqlx::types::Json;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::base::json::length::bytes_of;
use crate::domain::quota::{ExceededQuota, Quota};
use crate::domain::task::Task;
use crate::store::db::flow::QueueFlow;
use crate::store::db::text::text;
use crate::store::db::{Db, connection, fault, sqlite_reader};
use crate::store::ops::idempotency::Idempotency;
use crate::store::ops::quotas::Admission;
use crate::store::tasks::creating::key_conflict;
use crate::store::{Store, StoreError};

/// A refusal goes by a number that is not older than this: a tenant that has deleted something is not refused for long.
const RECENT: TimeDelta = TimeDelta::seconds(1);

impl Store {
    /// Adds up to `limit` differences to the numbers of their tenants, the oldest first; answers how many there were.
    /// Instances that do so together leave each other's alone.
    pub async fn count_stored_bytes(&self, limit: i64) -> Result<u64, StoreError> {
        match &self.db {
            Db::Postgres { pool, .. } => {
                let counted: i64 = sqlx::query_scalar(include_str!("../sql/count_stored_bytes.postgres.sql"))
                    .bind(limit)
                    .fetch_one(&mut *pool.acquire().await?)
                    .await?;
                Ok(counted as u64)
            }
            Db::Sqlite { writer, .. } => {
                let mut write = writer.begin(QueueFlow::of(None)).await?;
                fault()?;
                let counted = add_up(&mut write, limit).await?;
                write.commit().await?;
                fault()?;
                Ok(counted)
            }
        }
    }

    /// Whether there is something to be counted: a difference, or rows from before there were any.
    pub async fn has_uncounted_bytes(&self) -> Result<bool, StoreError> {
        let mut read = self.db.read_quick().await?;
        Ok(read
            .query("select exists (select 1 from stored_byte_changes) or exists (select 1 from stored_byte_scans)")
            .scalar()
            .await?)
    }

    /// Lets a tenant store so many more bytes, or refuses that. What is written takes one at least.
    pub async fn admit_bytes(&self, tenant: &str, bytes: usize) -> Result<(), StoreError> {
        self.refusal(self.try_admit(tenant, bytes).await)
    }

    /// The quota that keeps a tenant from storing so many more bytes, if it does: for what may turn out to store
    /// nothing. The caller refuses what does.
    pub(in crate::store) async fn exceeded_by(
        &self,
        tenant: &str,
        bytes: usize,
    ) -> Result<Option<Box<ExceededQuota>>, StoreError> {
        match self.try_admit(tenant, bytes).await {
            Ok(()) => Ok(None),
            Err(StoreError::Quota(exceeded)) => Ok(Some(exceeded)),
            Err(error) => Err(error),
        }
    }

    /// As [`Store::admit_bytes`]; a refusal is not counted as one yet.
    async fn try_admit(&self, tenant: &str, bytes: usize) -> Result<(), StoreError> {
        let (bytes, now) = (bytes.max(1) as u64, self.clock.now());
        let mut admission = self.quotas.admit(tenant, bytes, now);
        let is_recent = matches!(&admission, Admission::Full { read, .. } if (now - *read).abs() < RECENT);
        if admission != Admission::Granted && !is_recent {
            self.quotas.forget_tenant(tenant);
            self.allowances(&[tenant]).await?;
            admission = self.quotas.admit(tenant, bytes, self.clock.now());
        }
        let Admission::Full { limit, stored, .. } = admission else { return Ok(()) };
        Err(StoreError::Quota(Box::new(ExceededQuota {
            tenant: tenant.to_owned(),
            quota: Quota::StoredBytes,
            limit,
            usage: stored,
            retry_after: ExceededQuota::AMOUNT,
        })))
    }

    /// Lets the tenants of new tasks store them, or refuses that. A task whose key a full tenant has already stores
    /// nothing and is never refused: the ids of these are the answer, and they are to be left out.
    pub(in crate::store) async fn admit_tasks(&self, tasks: &[&Task]) -> Result<HashSet<Uuid>, StoreError> {
        let mut by_tenant: BTreeMap<&str, Vec<&Task>> = BTreeMap::new();
        for task in tasks {
            by_tenant.entry(&task.tenant_id).or_default().push(task);
        }
        let mut known = HashSet::new();
        for (tenant, mut tasks) in by_tenant {
            let bytes = |tasks: &[&Task]| tasks.iter().map(|task| bytes_of(&task.spec)).sum();
            let admitted = self.try_admit(tenant, bytes(&tasks)).await;
            if !matches!(admitted, Err(StoreError::Quota(_))) {
                admitted?;
                continue;
            }
            let has = self.known_by_key(tenant, &tasks).await?;
            tasks.retain(|task| !has.contains(&task.id));
            if has.is_empty() {
                self.refusal(admitted)?;
            } else if !tasks.is_empty() {
                self.admit_bytes(tenant, bytes(&tasks)).await?;
            }
            known.extend(has);
        }
        Ok(known)
    }

    /// The ids of those tasks of a tenant whose keys it has already.
    pub(in crate::store) async fn known_by_key(
        &self,
        tenant: &str,
        tasks: &[&Task],
    ) -> Result<HashSet<Uuid>, StoreError> {
        let keyed = || tasks.iter().filter_map(|task| Some((text(task.key.as_deref()?), task.id)));
        let keys: Vec<Cow<'_, str>> = keyed().map(|(key, _)| key).collect();
        if keys.is_empty() {
            return Ok(HashSet::new());
        }
        let has: Vec<String> = match &self.db {
            Db::Postgres { quick, waits, .. } => {
                let has = sqlx::query_scalar("select key from tasks where tenant_id = $1 and key = any($2)");
                has.bind(tenant).bind(&keys).fetch_all(&mut *connection("quick", quick, waits).await?).await?
            }
            Db::Sqlite { readers, waits, .. } => {
                let has = "select key from tasks where tenant_id = $1 and key in (select value from json_each($2))";
                let has = sqlx::query_scalar(has).bind(tenant).bind(Json(&keys));
                has.fetch_all(&mut *sqlite_reader(readers, waits).await?).await?
            }
        };
        let has: HashSet<String> = has.into_iter().collect();
        Ok(keyed().filter(|(key, _)| has.contains(key.as_ref())).map(|(_, id)| id).collect())
    }

    /// For whom something is stored with a task: the tenant of the scope, which has no other's tasks, or of the task.
    pub(in crate::store) async fn tenant_of_task(&self, scope: &Scope, id: Uuid) -> Result<String, StoreError> {
        if let Some(tenant) = scope.tenant() {
            return Ok(tenant.to_owned());
        }
        if let Some(tenant) = self.task_cache.tenant_of(id) {
            return Ok(tenant);
        }
        let tenant: Option<String> = self
            .db
            .read_quick()
            .await?
            .query("select tenant_id from tasks where id = $1")
            .bind(id)
            .optional_scalar()
            .await?;
        let tenant = tenant.ok_or(StoreError::NotFound)?;
        self.task_cache.keep_tenant(id, tenant.clone());
        Ok(tenant)
    }

    /// As [`Store::admit_bytes`], with the answer that is kept under a key; a repetition of what was done already
    /// stores nothing and is never refused.
    pub(in crate::store) async fn admit_once(
        &self,
        tenant: &str,
        bytes: usize,
        idempotency: Option<&Idempotency>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        self.refusal(self.try_admit_once(tenant, bytes, idempotency, now).await)
    }

    /// As [`Store::admit_once`] for a new task. [`StoreError::Conflict`]: its tenant is full, and has one with its key.
    pub(in crate::store) async fn admit_task(
        &self,
        task: &Task,
        idempotency: Option<&Idempotency>,
    ) -> Result<(), StoreError> {
        let bytes = bytes_of(&task.spec);
        let admitted = self.try_admit_once(&task.tenant_id, bytes, idempotency, task.created_at).await;
        let is_full = matches!(admitted, Err(StoreError::Quota(_)));
        match is_full && !self.known_by_key(&task.tenant_id, &[task]).await?.is_empty() {
            true => Err(key_conflict(task)),
            false => self.refusal(admitted),
        }
    }

    /// As [`Store::admit_once`]; a refusal is not counted as one yet.
    pub(in crate::store) async fn try_admit_once(
        &self,
        tenant: &str,
        bytes: usize,
        idempotency: Option<&Idempotency>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let answer = idempotency.map_or(0, |asked| asked.bytes_of_tenant(tenant));
        let admitted = self.try_admit(tenant, bytes.saturating_add(answer)).await;
        let (Err(StoreError::Quota(_)), Some(asked)) = (&admitted, idempotency) else { return admitted };
        let is_known: bool = self
            .db
            .read_quick()
            .await?
            .query("select exists (select 1 from idempotency where tenant_id = $1 and key = $2 and expires_at > $3)")
            .bind(&asked.tenant)
            .bind(text(&asked.key))
            .bind(now)
            .scalar()
            .await?;
        if is_known { Ok(()) } else { admitted }
    }
}

/// Adds differences to the numbers of their tenants; answers how many there were.
async fn add_up(conn: &mut SqliteConnection, limit: i64) -> Result<u64, StoreError> {
    let last: Option<i64> =
        sqlx::query_scalar("select max(id) from (select id from stored_byte_changes order by id limit $1)")
            .bind(limit)
            .fetch_one(&mut *conn)
            .await?;
    sqlx::query(
        "insert into tenant_usage (tenant_id, tasks, polls, stored_bytes)
         select tenant_id, 0, 0, sum(bytes) from stored_byte_changes where id <= $1 group by tenant_id
         on conflict (tenant_id) do update set stored_bytes = stored_bytes + excluded.stored_bytes",
    )
    .bind(last)
    .execute(&mut *conn)
    .await?;
    let counted = sqlx::query("delete from stored_byte_changes where id <= $1").bind(last).execute(conn).await?;
    Ok(counted.rows_affected())
}
