//! Values that pipelines of a task keep between runs, by name. Written so that a repetition changes nothing; what has
//! returned is durable. They go with their task.

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};
use sqlx::types::Json;
use uuid::Uuid;

use crate::base::id::{Scope, Tenant};
use crate::base::json::length::bytes_of;
use crate::store::db::text::{document, text};
use crate::store::runs::requests::LOCK_DUE;
use crate::store::{Store, StoreError};

/// Most names that one task may keep.
pub const STATE_NAMES: i64 = 100;

/// Most bytes of all values of a task together: each of its runs begins with a copy.
const STATE_BYTES: i64 = 512 * 1024;

impl Store {
    /// All that is stored of a task of this tenant, by name.
    pub async fn task_state(&self, tenant: &Tenant, task_id: Uuid) -> Result<Map<String, Value>, StoreError> {
        let scope = Scope::Only(tenant.clone());
        let rows: Vec<(String, Json<Value>)> = self
            .db
            .read()
            .await?
            .query("select name, value from task_state where task_id = $1 and tenant_id = $2 order by name limit $3")
            .bind(task_id)
            .bind(scope.tenant())
            .bind(STATE_NAMES)
            .all()
            .await?;
        Ok(rows.into_iter().map(|(name, value)| (name, value.0)).collect())
    }

    /// Stores a value under a name. The task must be there, and have fewer than [`STATE_NAMES`] other names.
    pub async fn put_task_state(
        &self,
        tenant: &Tenant,
        task_id: Uuid,
        name: &str,
        value: &Value,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        self.admit_bytes(tenant.as_str(), bytes_of(value)).await?;
        let scope = Scope::Only(tenant.clone());
        let mut write = self.db.write(&scope).await?;
        let tx = &mut write.tx();
        // the task's row is locked: two runs that write at once see each other's names, and a task that is being
        // deleted gets none
        let epoch: Option<i64> = tx.query(LOCK_DUE).bind(task_id).optional_scalar().await?;
        let owner: Option<i64> = tx
            .query("select version from tasks where id = $1 and tenant_id = $2")
            .bind(task_id)
            .bind(scope.tenant())
            .optional_scalar()
            .await?;
        if epoch.is_none() || owner.is_none() {
            return Err(StoreError::NotFound);
        }
        let others: i64 = tx
            .query("select count(*) from task_state where task_id = $1 and name <> $2")
            .bind(task_id)
            .bind(text(name))
            .scalar()
            .await?;
        let bytes: i64 = tx
            .query(
                "select coalesce(sum(length(cast(value as text))), 0) from task_state
                  where task_id = $1 and name <> $2",
            )
            .bind(task_id)
            .bind(text(name))
            .scalar()
            .await?;
        if bytes + value.to_string().len() as i64 > STATE_BYTES {
            return Err(StoreError::Conflict(format!("all that a task stores may have at most {STATE_BYTES} bytes")));
        }
        if others >= STATE_NAMES {
            return Err(StoreError::Conflict(format!("a task may store at most {STATE_NAMES} names")));
        }
        tx.query(
            "insert into task_state (task_id, tenant_id, name, value, updated_at)
             values ($1, $2, $3, $4, $5)
             on conflict (task_id, name) do update set value = excluded.value, updated_at = excluded.updated_at",
        )
        .bind(task_id)
        .bind(scope.tenant())
        .bind(text(name))
        .bind(document(value)?)
        .bind(now)
        .execute()
        .await?;
        write.commit().await?;
        Ok(())
    }

    /// Removes a name; one that is not there is removed already.
    pub async fn delete_task_state(&self, tenant: &Tenant, task_id: Uuid, name: &str) -> Result<(), StoreError> {
        let scope = Scope::Only(tenant.clone());
        let mut write = self.db.write(&scope).await?;
        write
            .query("delete from task_state where task_id = $1 and tenant_id = $2 and name = $3")
            .bind(task_id)
            .bind(scope.tenant())
            .bind(text(name))
            .execute()
            .await?;
        write.commit().await?;
        Ok(())
    }
}
