//! Recipients: one document per tenant. Secrets in it are sealed before they come here.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::types::Json;

use crate::id::Scope;
use crate::notification::Recipient;
use crate::store::db::Db;
use crate::store::text::{document, text};
use crate::store::{Store, StoreError, listed};

/// A recipient as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRecipient {
    pub recipient: Recipient,
    /// Bumped by each write.
    pub version: i64,
    pub updated_at: DateTime<Utc>,
}

/// A recipient as it is stored; one that is damaged is as good as none.
pub(super) fn read(tenant: &str, body: Value) -> Option<Recipient> {
    match serde_json::from_value(body) {
        Ok(recipient) => Some(recipient),
        Err(error) => {
            tracing::error!(tenant_id = tenant, %error, "a recipient can't be read");
            None
        }
    }
}

/// The beginning of a read by listed keys.
pub(super) const LISTED: &str = "select tenant_id, body from recipients where tenant_id in ";

impl Store {
    /// Where the tenant is reached.
    pub async fn get_recipient(&self, scope: &Scope, tenant: &str) -> Result<StoredRecipient, StoreError> {
        let row: Option<(Json<Recipient>, i64, DateTime<Utc>)> = on_read!(self.db, scope, |conn| {
            sqlx::query_as(
                "select body, version, updated_at from recipients
                  where tenant_id = $1 and ($2 is null or tenant_id = $2)",
            )
            .bind(text(tenant))
            .bind(scope.tenant())
            .fetch_optional(conn)
            .await?
        });
        let (body, version, updated_at) = row.ok_or(StoreError::NotFound)?;
        Ok(StoredRecipient { recipient: body.0, version, updated_at })
    }

    /// The recipients of these tenants, as far as they have one that can be read: a damaged one must not keep others
    /// from being told.
    pub async fn recipients_by_tenant(&self, tenants: &[&str]) -> Result<HashMap<String, Recipient>, StoreError> {
        let rows: Vec<(String, Json<Value>)> = match &self.db {
            Db::Postgres { quick, waits, .. } => {
                let mut held = quickly!(quick, waits);
                sqlx::query_as("select tenant_id, body from recipients where tenant_id = any($1)")
                    .bind(tenants)
                    .fetch_all(&mut *held)
                    .await?
            }
            Db::Sqlite { readers, .. } => listed::read(readers, LISTED, tenants).await?,
        };
        let mut readable = HashMap::with_capacity(rows.len());
        for (tenant, body) in rows {
            if let Some(recipient) = read(&tenant, body.0) {
                readable.insert(tenant, recipient);
            }
        }
        Ok(readable)
    }

    /// Writes a recipient, if it still has the version that was read (0: there was none). A scope writes its own only.
    pub async fn put_recipient(
        &self,
        scope: &Scope,
        tenant: &str,
        recipient: &Recipient,
        read_version: i64,
    ) -> Result<StoredRecipient, StoreError> {
        if scope.tenant().is_some_and(|own| own != tenant) {
            return Err(StoreError::NotFound);
        }
        let now = self.clock.now();
        let written = on_write!(self.db, scope, |conn| {
            sqlx::query(
                "insert into recipients (tenant_id, body, version, updated_at)
                 select $1, $2, 1, $3 where $4 = 0 or exists (select 1 from recipients where tenant_id = $1)
                 on conflict (tenant_id) do update
                    set body = excluded.body, version = recipients.version + 1, updated_at = excluded.updated_at
                  where recipients.version = $4",
            )
            .bind(tenant)
            .bind(document(recipient)?)
            .bind(now)
            .bind(read_version)
            .execute(conn)
            .await?
            .rows_affected()
        });
        if written == 0 {
            return Err(StoreError::Conflict("the recipient has changed meanwhile".into()));
        }
        Ok(StoredRecipient { recipient: recipient.clone(), version: read_version + 1, updated_at: now })
    }
}
