//! Recipients: one document per tenant. Secrets in it are sealed before they come here.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde_json::json;
use sqlx::FromRow;
use sqlx::types::Json;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::notification::Recipient;
use crate::store::columns::Columns;
use crate::store::db::listing::{PAGE_BYTES, PagedRow};
use crate::store::db::text::{document, text};
use crate::store::db::{Db, connection, sqlite_batch};
use crate::store::ops::audit::{AuditAction, ENTRY_BYTES, write_audit};
use crate::store::sql::sql;
use crate::store::{RowPage, Split, Store, StoreError};

/// A recipient as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRecipient {
    /// The recipient.
    pub recipient: Recipient,
    /// Bumped by each write.
    pub version: i64,
    /// The instant of the last change.
    pub updated_at: DateTime<Utc>,
}

/// Which recipients to list: in the order of their tenants, after the tenant `after`.
#[derive(Debug, Clone, Default)]
pub struct RecipientFilter {
    /// Only ids after this one, for the next page.
    pub after: Option<String>,
    /// Most rows of the page.
    pub limit: i64,
}

/// A recipient in a list.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedRecipient {
    /// Id of the recipient, which is its tenant's.
    pub tenant_id: String,
    /// `None`: it is damaged.
    pub stored: Option<StoredRecipient>,
}

struct ListedRow {
    tenant_id: String,
    body: String,
    /// Its version, and when it was written; or why that can't be read.
    written: Result<(i64, DateTime<Utc>), String>,
}

impl<'r, R: Columns> FromRow<'r, R> for ListedRow {
    fn from_row(row: &'r R) -> Result<ListedRow, sqlx::Error> {
        let written = || Ok::<_, sqlx::Error>((row.value("version")?, row.value("updated_at")?));
        Ok(ListedRow {
            tenant_id: row.value("tenant_id")?,
            body: row.value("body")?,
            written: written().map_err(|error| error.to_string()),
        })
    }
}

/// A page of recipients: the rows that match are measured, and those that fit are read.
const MEASURED: &str = "with page as materialized (
    select tenant_id, octet_length(cast(body as text)) as bytes from recipients where true";
const FITTING: &str = "), fit as (
        select tenant_id, sum(bytes) over (order by tenant_id rows unbounded preceding) - bytes as before from page)
    select x.*, (select count(*) from page) as found from (
        select r.tenant_id, cast(r.body as text) as body, r.version, r.updated_at {of} where fit.before < ";
const FITTING_BOTH: Split = Split {
    postgres: sql!(FITTING; "{of}" = "from fit cross join lateral (
                       select * from recipients where recipients.tenant_id = fit.tenant_id offset 0) r"),
    sqlite: sql!(FITTING; "{of}" = "from recipients r join fit on fit.tenant_id = r.tenant_id"),
};

/// Tables with rows of a recipient beside its document, which go with it.
const BESIDE: [&str; 3] = [
    "delete from verifications where tenant_id = $1",
    "delete from interruptions where tenant_id = $1",
    // sent to an address that may be another person's by now
    "delete from approval_links where recipient = $1",
];

/// The beginning of a read by listed keys.
pub(in crate::store) const LISTED: &str = "select tenant_id, cast(body as text) from recipients where tenant_id in ";

impl Store {
    /// Where the tenant is reached.
    ///
    /// # Errors
    /// `NotFound`: it has no recipient, or is in another scope.
    pub async fn get_recipient(&self, scope: &Scope, tenant: &str) -> Result<StoredRecipient, StoreError> {
        self.find_recipient(scope, tenant).await?.ok_or(StoreError::NotFound)
    }

    /// Where the tenant is reached, if it has said so.
    pub async fn find_recipient(&self, scope: &Scope, tenant: &str) -> Result<Option<StoredRecipient>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let row: Option<(Json<Recipient>, i64, DateTime<Utc>)> = read
            .query(
                "select body, version, updated_at from recipients
                  where tenant_id = $1 and ($2 is null or tenant_id = $2)",
            )
            .bind(text(tenant))
            .bind(scope.tenant())
            .optional()
            .await?;
        read.end().await?;
        Ok(row.map(|(body, version, updated_at)| StoredRecipient { recipient: body.0, version, updated_at }))
    }

    /// Where the tenant is reached, for a service that has something to tell it: one that can't be read is as good as
    /// none, and is told of once.
    pub async fn recipient_to_tell(&self, tenant: &str) -> Result<Option<Recipient>, StoreError> {
        Ok(self.recipients_by_tenant(&[tenant]).await?.remove(tenant))
    }

    /// A page of recipients, in the order of their tenants.
    pub async fn list_recipients(
        &self,
        scope: &Scope,
        filter: &RecipientFilter,
    ) -> Result<RowPage<ListedRecipient>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let mut query = read.build(MEASURED);
        if let Some(own) = scope.tenant() {
            query.push(" and tenant_id = ").push_bind(text(own).into_owned());
        }
        if let Some(after) = &filter.after {
            query.push(" and tenant_id > ").push_bind(text(after).into_owned());
        }
        query.push(" order by tenant_id limit ").push_bind(filter.limit).push_split(FITTING_BOTH).push_bind(PAGE_BYTES);
        query.push(") x order by x.tenant_id");
        let rows: Vec<PagedRow<ListedRow>> = query.finish().all().await?;
        read.end().await?;
        RowPage::of(rows, |row| Ok(self.listed(row)))
    }

    fn listed(&self, ListedRow { tenant_id, body, written }: ListedRow) -> ListedRecipient {
        let recipient = self.readable(&tenant_id, serde_json::from_str(&body));
        let written = written.inspect_err(|why| self.unreadable.report("recipients", &tenant_id, why)).ok();
        let stored = recipient.zip(written);
        let stored =
            stored.map(|(recipient, (version, updated_at))| StoredRecipient { recipient, version, updated_at });
        ListedRecipient { tenant_id, stored }
    }

    /// The recipients of these tenants, as far as they have one that can be read: a damaged one must not keep others
    /// from being told.
    pub async fn recipients_by_tenant(&self, tenants: &[&str]) -> Result<HashMap<String, Recipient>, StoreError> {
        let rows: Vec<(String, String)> = match &self.db {
            Db::Postgres { quick, waits, .. } => {
                let mut held = connection("quick", quick, waits).await?;
                sqlx::query_as("select tenant_id, cast(body as text) from recipients where tenant_id = any($1)")
                    .bind(tenants)
                    .fetch_all(&mut *held)
                    .await?
            }
            Db::Sqlite { readers, .. } => sqlite_batch::read(readers, LISTED, tenants).await?,
        };
        Ok(self.readable_recipients(rows))
    }

    /// Recipients as they are stored, without those that are damaged.
    pub(in crate::store) fn readable_recipients(&self, rows: Vec<(String, String)>) -> HashMap<String, Recipient> {
        let mut readable = HashMap::with_capacity(rows.len());
        for (tenant, body) in rows {
            if let Some(recipient) = self.readable(&tenant, serde_json::from_str(&body)) {
                readable.insert(tenant, recipient);
            }
        }
        readable
    }

    /// A recipient as it was read; one that is damaged is as good as none, and is told of once.
    pub(in crate::store) fn readable(&self, tenant: &str, read: serde_json::Result<Recipient>) -> Option<Recipient> {
        read.inspect_err(|error| self.unreadable.report("recipients", tenant, error)).ok()
    }

    /// Writes a recipient, if it is still the one that was read (`None`: there was none). One that was deleted and made
    /// again is another, though it has the version again. A scope writes its own only.
    ///
    /// # Errors
    /// `Conflict`: it is another one by now. `Quota`: there was none, and the tenant has stored all that it may.
    pub async fn put_recipient(
        &self,
        scope: &Scope,
        tenant: &str,
        recipient: &Recipient,
        read: Option<&StoredRecipient>,
    ) -> Result<StoredRecipient, StoreError> {
        if scope.tenant().is_some_and(|own| own != tenant) {
            return Err(StoreError::NotFound);
        }
        if read.is_none() {
            // its deletion is never refused, and leaves an entry for good
            self.admit_bytes(tenant, ENTRY_BYTES).await?;
        }
        let now = self.clock.now();
        let read_version = read.map_or(0, |read| read.version);
        let mut write = self.db.write(scope).await?;
        let written = write
            .query(
                "insert into recipients (tenant_id, body, version, updated_at)
                 select $1, $2, 1, $3 where $4 = 0 or exists (select 1 from recipients where tenant_id = $1)
                 on conflict (tenant_id) do update
                    set body = excluded.body, version = recipients.version + 1, updated_at = excluded.updated_at
                  where recipients.version = $4 and recipients.updated_at = $5",
            )
            .bind(tenant)
            .bind(document(recipient)?)
            .bind(now)
            .bind(read_version)
            .bind(read.map(|read| read.updated_at))
            .execute()
            .await?;
        write.commit().await?;
        if written == 0 {
            return Err(StoreError::Conflict("the recipient has changed meanwhile".into()));
        }
        Ok(StoredRecipient { recipient: recipient.clone(), version: read_version + 1, updated_at: now })
    }

    /// Removes a recipient for good: its addresses with their sealed secrets, what is proved of them and the codes that
    /// are open, the links to questions that were sent there, and how often it was interrupted. What names it stays,
    /// and finds nobody. A scope removes its own only.
    pub async fn delete_recipient(&self, scope: &Scope, tenant: &str, by: &str) -> Result<(), StoreError> {
        if scope.tenant().is_some_and(|own| own != tenant) {
            return Err(StoreError::NotFound);
        }
        let now = self.clock.now();
        // links may lead to questions of other tenants
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let gone = tx.query("delete from recipients where tenant_id = $1").bind(text(tenant)).execute().await?;
        if gone == 0 {
            return Err(StoreError::NotFound);
        }
        for beside in BESIDE {
            tx.query(beside).bind(text(tenant)).execute().await?;
        }
        write_audit(tx, deleted(tenant, by), now).await?;
        write.commit().await?;
        Ok(())
    }
}

/// The audit entry for a recipient that is gone: nothing about the person.
fn deleted<'a>(tenant: &'a str, by: &'a str) -> AuditAction<'a> {
    AuditAction {
        tenant,
        actor: by,
        via: "api",
        action: "recipient.deleted",
        subject_type: "recipient",
        subject_id: Uuid::nil(),
        body: json!({}),
    }
}
