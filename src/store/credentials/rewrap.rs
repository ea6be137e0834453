//! Secrets that are sealed under other master keys than the first, and putting them under that one. No secret is
//! touched: its data key is wrapped anew, above the store. A row that was written since it was read is left as it is.

use std::fmt::Display;

use chrono::{DateTime, Utc};
use serde_json::Value;
use uuid::Uuid;

use crate::base::id::{Scope, new_id};
use crate::store::credentials::row;
use crate::store::db::text::document;
use crate::store::ops::audit::{AuditAction, write_audit};
use crate::store::sql::sql;
use crate::store::{Store, StoreError, StoredCredential};

/// A row with sealed texts in its document.
#[derive(Debug, Clone, PartialEq)]
pub struct SealedRow<Id> {
    /// Id of the row.
    pub id: Id,
    /// The tenant that owns the row.
    pub tenant_id: String,
    /// Version of the row as it was read.
    pub version: i64,
    /// With the version it tells a recipient from one that was made again under its name.
    pub updated_at: DateTime<Utc>,
    /// `None`: nothing in it is sealed.
    pub body: Option<Value>,
}

/// Id, tenant, version, when it was written, and what is sealed.
type SealedTaskRow = (Uuid, String, i64, DateTime<Utc>, Option<String>);

impl Store {
    /// Credentials whose data key is not wrapped with this master key, in the order of their ids, after `after`. One
    /// that can't be read is left out.
    pub async fn credentials_not_under(
        &self,
        key_id: &str,
        after: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<StoredCredential>, StoreError> {
        let (mut found, mut after) = (Vec::new(), after.unwrap_or_default());
        loop {
            let left = limit - found.len() as i64;
            let mut read = self.db.read().await?;
            let rows = read.query(NOT_UNDER).bind(key_id).bind(after).bind(left).rows().await?;
            let last: Option<Uuid> = rows.last_column("id")?;
            let (stored, others) =
                self.unreadable.partition_readable::<StoredCredential, _, Uuid>("credentials", &rows, Ok);
            let others = others.len();
            read.end().await?;
            let is_all = (stored.len() + others) < left as usize;
            found.extend(stored);
            // a page ends where there are no more, or is full: what can't be read does not make it shorter
            match last {
                Some(last) if !is_all && others > 0 => after = last,
                _ => return Ok(found),
            }
        }
    }

    /// Puts the data key of a credential under another master key, unless the document was written since it was read.
    /// It stays the same version and generation. Answers whether it did.
    pub async fn rewrap_credential(
        &self,
        read: &StoredCredential,
        sealed: &str,
        key_id: &str,
    ) -> Result<bool, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let written = write
            .query("update credentials set sealed = $3, key_id = $4 where id = $1 and sealed = $2")
            .bind(read.credential.id)
            .bind(&read.sealed)
            .bind(sealed)
            .bind(key_id)
            .execute()
            .await?;
        write.commit().await?;
        Ok(written == 1)
    }

    /// How many credentials are under each master key.
    pub async fn keys_of_credentials(&self) -> Result<Vec<(String, i64)>, StoreError> {
        let mut read = self.db.read().await?;
        Ok(read.query("select key_id, count(*) from credentials group by key_id order by key_id").all().await?)
    }

    /// A page of recipients in the order of their names, after `after`, with the documents of those that have secrets.
    pub async fn sealed_recipients(&self, after: &str, limit: i64) -> Result<Vec<SealedRow<String>>, StoreError> {
        let rows: Vec<(String, i64, DateTime<Utc>, Option<String>)> = self
            .db
            .read()
            .await?
            .query(
                "select tenant_id, version, updated_at,
                        case when cast(body as text) like '%\"sealed_%' then cast(body as text) end
                   from recipients where tenant_id > $1 order by tenant_id limit $2",
            )
            .bind(after)
            .bind(limit)
            .all()
            .await?;
        let row = |(tenant, version, updated_at, body): (String, i64, DateTime<Utc>, Option<String>)| SealedRow {
            body: self.sealed_body("recipients", &tenant, body),
            id: tenant.clone(),
            tenant_id: tenant,
            version,
            updated_at,
        };
        Ok(rows.into_iter().map(row).collect())
    }

    /// Writes a recipient's document with its secrets rewrapped, unless it was written since it was read. It becomes
    /// another version, so that who read it before does not put the old secrets back. Answers whether it did.
    pub async fn rewrap_recipient(&self, read: &SealedRow<String>, body: &Value) -> Result<bool, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let written = write
            .query(
                "update recipients set body = $3, version = version + 1
                  where tenant_id = $1 and version = $2 and updated_at = $4",
            )
            .bind(&read.tenant_id)
            .bind(read.version)
            .bind(document(body)?)
            .bind(read.updated_at)
            .execute()
            .await?;
        write.commit().await?;
        Ok(written == 1)
    }

    /// A page of tasks in the order of their ids, after `after`, with the specs of those that have secrets.
    pub async fn sealed_tasks(&self, after: Option<Uuid>, limit: i64) -> Result<Vec<SealedRow<Uuid>>, StoreError> {
        let rows: Vec<SealedTaskRow> = self
            .db
            .read()
            .await?
            .query(
                "select id, tenant_id, version, updated_at,
                        case when cast(spec as text) like '%\"sealed_%' then cast(spec as text) end
                   from tasks where id > $1 order by id limit $2",
            )
            .bind(after.unwrap_or_default())
            .bind(limit)
            .all()
            .await?;
        let row = |(id, tenant_id, version, updated_at, body): SealedTaskRow| SealedRow {
            id,
            tenant_id,
            version,
            updated_at,
            body: self.sealed_body("tasks", id, body),
        };
        Ok(rows.into_iter().map(row).collect())
    }

    /// A document with sealed texts; one that is no JSON has none that could be read.
    fn sealed_body(&self, table: &'static str, id: impl Display, body: Option<String>) -> Option<Value> {
        let read = serde_json::from_str(&body?);
        read.inspect_err(|error| self.unreadable.report(table, id, error)).ok()
    }

    /// Writes a rewrapped task: another version of it, of the same epoch, so that its fires stand.
    pub async fn rewrap_task(&self, read: &SealedRow<Uuid>, spec: &Value) -> Result<bool, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let written = write
            .query("update tasks set spec = $3, version = version + 1 where id = $1 and version = $2")
            .bind(read.id)
            .bind(read.version)
            .bind(document(spec)?)
            .execute()
            .await?;
        write.commit().await?;
        Ok(written == 1)
    }

    /// Records that somebody had secrets put under the first master key.
    pub async fn note_rotation(&self, by: &str, body: Value) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let act = AuditAction {
            tenant: EVERY_TENANT,
            actor: by,
            via: "api",
            action: "master_key.rotated",
            subject_type: "master_key",
            subject_id: new_id(now),
            body,
        };
        write_audit(tx, act, now).await?;
        write.commit().await?;
        Ok(())
    }
}

/// Tenant of audit entries that concern every tenant.
const EVERY_TENANT: &str = "*";

const NOT_UNDER: &str =
    sql!("select ", row::COLUMNS, " from credentials where key_id <> $1 and id > $2 order by id limit $3");
