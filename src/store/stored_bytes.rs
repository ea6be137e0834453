//! Bytes that tenants have stored: how they are counted, and when a tenant may store no more.
//!
//! Triggers of the database count: whatever writes or deletes leaves a row with the difference, in the transaction that it
//! belongs to, so nothing is left out, and no writer waits for another one's row. [`Store::count_stored_bytes`] adds these
//! rows to the tenant's number, a bounded batch at a time. What is admitted goes by that number, not older than
//! [`MEMORY`], and by what this instance has admitted since it was read.
//!
//! [`MEMORY`]: super::quotas::MEMORY

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::id::Scope;
use crate::quota::{Exceeded, Quota};
use crate::store::db::Db;
use crate::store::idempotency::Idempotency;
use crate::store::quotas::Admission;
use crate::store::text::text;
use crate::store::{Store, StoreError};

/// A refusal goes by a number that is not older than this: a tenant that has deleted something is not refused for long.
const RECENT: TimeDelta = TimeDelta::seconds(1);

impl Store {
    /// Adds up to `limit` differences to the numbers of their tenants, the oldest first; answers how many there were.
    /// Instances that do so together leave each other's alone.
    pub async fn count_stored_bytes(&self, limit: i64) -> Result<u64, StoreError> {
        match &self.db {
            Db::Postgres { pool, .. } => {
                let counted: i64 = sqlx::query_scalar(include_str!("sql/count_stored_bytes.postgres.sql"))
                    .bind(limit)
                    .fetch_one(&mut *pool.acquire().await?)
                    .await?;
                Ok(counted as u64)
            }
            Db::Sqlite { writer, .. } => Ok(committed!(writer.begin_with("begin immediate").await?, |conn| {
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
                sqlx::query("delete from stored_byte_changes where id <= $1")
                    .bind(last)
                    .execute(&mut *conn)
                    .await?
                    .rows_affected()
            })),
        }
    }

    /// Whether there is something to be counted.
    pub async fn has_uncounted_bytes(&self) -> Result<bool, StoreError> {
        Ok(on_read!(quick self.db, |conn| {
            sqlx::query_scalar("select exists (select 1 from stored_byte_changes)").fetch_one(conn).await?
        }))
    }

    /// Lets a tenant store so many more bytes, or refuses that. What is written takes one at least.
    pub async fn admit_bytes(&self, tenant: &str, bytes: usize) -> Result<(), StoreError> {
        let (bytes, now) = (bytes.max(1) as u64, self.clock.now());
        let mut admission = self.quotas.admit(tenant, bytes, now);
        let is_recent = matches!(&admission, Admission::Full { read, .. } if (now - *read).abs() < RECENT);
        if admission != Admission::Granted && !is_recent {
            self.quotas.forget_tenant(tenant);
            self.allowances(&[tenant]).await?;
            admission = self.quotas.admit(tenant, bytes, self.clock.now());
        }
        let Admission::Full { limit, stored, .. } = admission else { return Ok(()) };
        let exceeded = Exceeded {
            tenant: tenant.to_owned(),
            quota: Quota::StoredBytes,
            limit,
            usage: stored,
            retry_after: Exceeded::AMOUNT,
        };
        self.refusal(Err(StoreError::Quota(Box::new(exceeded))))
    }

    /// For whom something is stored with a task: the tenant of the scope, which has no other's tasks, or of the task.
    pub(super) async fn tenant_of_task(&self, scope: &Scope, id: Uuid) -> Result<String, StoreError> {
        if let Some(tenant) = scope.tenant() {
            return Ok(tenant.to_owned());
        }
        let tenant: Option<String> = on_read!(quick self.db, |conn| {
            sqlx::query_scalar("select tenant_id from tasks where id = $1").bind(id).fetch_optional(conn).await?
        });
        tenant.ok_or(StoreError::NotFound)
    }

    /// As [`Store::admit_bytes`]; a repetition of what was done already stores nothing and is never refused.
    pub(super) async fn admit_once(
        &self,
        tenant: &str,
        bytes: usize,
        idempotency: Option<&Idempotency>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let admitted = self.admit_bytes(tenant, bytes).await;
        let (Err(StoreError::Quota(_)), Some(asked)) = (&admitted, idempotency) else { return admitted };
        let is_known: bool = on_read!(quick self.db, |conn| {
            sqlx::query_scalar(
                "select exists (select 1 from idempotency where tenant_id = $1 and key = $2 and expires_at > $3)",
            )
            .bind(&asked.tenant)
            .bind(text(&asked.key))
            .bind(now)
            .fetch_one(conn)
            .await?
        });
        if is_known { Ok(()) } else { admitted }
    }
}
