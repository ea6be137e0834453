//! Credentials: sealed documents of tenants and where they may go; who used them is in `uses`, renewing them in
//! `refresh`, sealing them under another master key in `rewrap`.
//!
//! A document comes here sealed and leaves sealed. What has returned survives a crash; a write that finds another
//! version than the one that was read changes nothing.

pub(super) mod credential_status;
mod refresh;
mod resuming;
mod rewrap;
mod row;
mod uses;

use chrono::{DateTime, Utc};
use serde_json::json;
use uuid::Uuid;

use crate::base::id::{Scope, new_id};
use crate::base::json::length::bytes_of;
use crate::domain::actor::Actor;
use crate::domain::credential::{Credential, CredentialStatus, Inject, OAuth, Reference};
use crate::domain::task::DependentTask;
pub(super) use crate::store::credentials::credential_status::lock_reference;
use crate::store::credentials::resuming::{Resumptions, resume_waiting};
use crate::store::credentials::row::{LISTED, MEASURED};
use crate::store::db::listing::{PAGE_BYTES, PagedRow, RowPage, push_page};
use crate::store::db::text::{document, optional_document, text};
use crate::store::ops::audit::{AuditAction, ENTRY_BYTES, write_audit};
use crate::store::sql::sql;
use crate::store::tasks::changes::PLANS;
use crate::store::{Store, StoreError};

pub use rewrap::SealedRow;
pub use uses::UseFilter;
pub(super) use uses::{add_credentials, name_credentials};

/// A credential as it is stored.
#[derive(Clone, PartialEq, sqlx_macros::FromRow)]
pub struct StoredCredential {
    /// The credential, without its document.
    #[sqlx(flatten)]
    pub credential: Credential,
    /// The document, as the vault sealed it for the field `document/{generation}`.
    pub sealed: String,
    /// Bumped by each write of the document.
    pub generation: i64,
    /// The master key that its data key is wrapped with.
    pub key_id: String,
}

/// A document that is to be stored.
#[derive(Clone, PartialEq)]
pub struct SealedDocument {
    /// The sealed document.
    pub sealed: String,
    /// That it was sealed for: [`next_generation`].
    pub generation: i64,
    /// Id of the master key that it is sealed under.
    pub key_id: String,
    /// Of the access token in it, where that is known.
    pub expires_at: Option<DateTime<Utc>>,
}

/// A credential that is to be written, in the place of the one of the same tenant, service and account if there is one.
#[derive(Debug, Clone, PartialEq)]
pub struct CredentialRowDraft {
    /// The tenant that owns it.
    pub tenant_id: String,
    /// Name of the service.
    pub service: String,
    /// Name of the account.
    pub account_name: String,
    /// Hosts that it may be sent to.
    pub hosts: Vec<String>,
    /// The form in which it is put into requests.
    pub inject: Option<Inject>,
    /// Renewal by OAuth.
    pub oauth: Option<OAuth>,
    /// `None`: the stored one is kept.
    pub document: Option<SealedDocument>,
    /// The writer: `token:<id>`, `recipient:<id>`, `service`.
    pub by: String,
}

/// The written credential, and the effects of the write.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedCredential {
    /// The credential after the write.
    pub stored: StoredCredential,
    /// Tasks that were paused for want of it, and go on: the first of them.
    pub resumed: Vec<DependentTask>,
    /// How many more go on after them, one after the other.
    pub resuming: u64,
}

/// Which credentials to list. Newest first, after `before`.
#[derive(Debug, Clone, Default)]
pub struct CredentialFilter {
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only of this service.
    pub service: Option<String>,
    /// Only with this status.
    pub status: Option<CredentialStatus>,
    /// Only ids before this one, for the next page.
    pub before: Option<Uuid>,
    /// Most rows of the page.
    pub limit: i64,
}

/// The generation that the next document of a credential is sealed for. The first one's is the millisecond in which it
/// is made, so that what was sealed for a credential of the same name that was deleted opens no more.
pub fn next_generation(stored: Option<&StoredCredential>, now: DateTime<Utc>) -> i64 {
    stored.map_or(now.timestamp_millis(), |stored| stored.generation + 1)
}

impl std::fmt::Debug for StoredCredential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredCredential")
            .field("credential", &self.credential)
            .field("sealed", &crate::base::secret::REDACTED)
            .field("generation", &self.generation)
            .field("key_id", &self.key_id)
            .finish()
    }
}

impl std::fmt::Debug for SealedDocument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealedDocument")
            .field("sealed", &crate::base::secret::REDACTED)
            .field("generation", &self.generation)
            .field("key_id", &self.key_id)
            .field("expires_at", &self.expires_at)
            .finish()
    }
}

/// Said where tasks that wait for a credential are other ones at each try to write it.
const TASKS_MOVE: &str = "the tasks that wait for the credential are being changed all the time";

impl Store {
    /// Writes a credential, if it still has the version that was read (0: there was none). With a document it is active
    /// again, and whoever refreshes it has lost the lease. Tasks that are paused for want of it go on, if it is active:
    /// the first in the same transaction, the others by [`Store::resume_next`]. A scope writes its own only.
    ///
    /// # Errors
    /// `Conflict`: it has another version. `Quota`: the tenant has stored all that it may; each write is on the record
    /// of audit.
    pub async fn put_credential(
        &self,
        scope: &Scope,
        new: &CredentialRowDraft,
        read_version: i64,
    ) -> Result<SavedCredential, StoreError> {
        if scope.tenant().is_some_and(|own| own != new.tenant_id) {
            return Err(StoreError::NotFound);
        }
        let now = self.clock.now();
        let sealed = new.document.as_ref().map_or(0, |document| document.sealed.len());
        self.admit_bytes(&new.tenant_id, sealed + bytes_of(&new.hosts) + ENTRY_BYTES).await?;
        let reference = Reference { service: new.service.clone(), account: new.account_name.clone() };
        let mut planned = self.plan_resumptions(scope, &new.tenant_id, &reference).await?;
        for _ in 0..PLANS {
            match self.try_put(scope, new, read_version, &planned, now).await? {
                Ok(saved) => return Ok(saved),
                Err(unplanned) => self.plan_more(scope, unplanned, &mut planned).await?,
            }
        }
        Err(StoreError::Unavailable(TASKS_MOVE.into()))
    }

    /// One try; `Err`: these tasks are not planned as they are, and nothing is written.
    async fn try_put(
        &self,
        scope: &Scope,
        new: &CredentialRowDraft,
        read_version: i64,
        planned: &Resumptions,
        now: DateTime<Utc>,
    ) -> Result<Result<SavedCredential, Vec<Uuid>>, StoreError> {
        let mut write = self.db.write(scope).await?;
        let tx = &mut write.tx();
        lock_reference(tx, &new.tenant_id, &new.service, &new.account_name).await?;
        let query = match (read_version, &new.document) {
            (0, None) => return Err(StoreError::Conflict("the credential needs a document".into())),
            (0, Some(_)) => tx.query(INSERT).bind(new_id(now)),
            _ => tx.query(UPDATE).bind(read_version),
        };
        let (sealed, generation, key_id, expires_at) = match &new.document {
            Some(new) => (Some(&new.sealed), Some(new.generation), Some(&new.key_id), new.expires_at),
            None => (None, None, None, None),
        };
        let stored: Option<StoredCredential> = query
            .bind(text(&new.tenant_id))
            .bind(text(&new.service))
            .bind(text(&new.account_name))
            .bind(document(&new.hosts)?)
            .bind(optional_document(new.inject.as_ref())?)
            .bind(optional_document(new.oauth.as_ref())?)
            .bind(now)
            .bind(sealed)
            .bind(generation)
            .bind(key_id)
            .bind(expires_at)
            .optional()
            .await?;
        let stored = stored.ok_or_else(|| StoreError::Conflict("the credential has changed meanwhile".into()))?;
        // the tasks before the record, whose chain everybody waits for
        let went_on = match resume_waiting(self, tx, &stored.credential, scope, planned).await? {
            Ok(went_on) => went_on,
            Err(unplanned) => return Ok(Err(unplanned)),
        };
        write_audit(tx, act(&stored.credential, "credential.put", &new.by, new.document.is_some()), now).await?;
        write.commit().await?;
        self.notify_resumed(&went_on);
        Ok(Ok(SavedCredential { stored, resumed: went_on.resumed, resuming: went_on.later }))
    }

    /// One credential.
    ///
    /// # Errors
    /// `NotFound`: there is none in the scope.
    pub async fn get_credential(
        &self,
        scope: &Scope,
        tenant: &str,
        service: &str,
        account: &str,
    ) -> Result<StoredCredential, StoreError> {
        self.find_credential(scope, tenant, service, account).await?.ok_or(StoreError::NotFound)
    }

    /// One credential, if it is there.
    pub async fn find_credential(
        &self,
        scope: &Scope,
        tenant: &str,
        service: &str,
        account: &str,
    ) -> Result<Option<StoredCredential>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let found = read
            .query(SELECT_ONE)
            .bind(text(tenant))
            .bind(text(service))
            .bind(text(account))
            .bind(scope.tenant())
            .optional()
            .await?;
        read.end().await?;
        Ok(found)
    }

    /// Credentials that match, newest first.
    pub async fn list_credentials(
        &self,
        scope: &Scope,
        filter: &CredentialFilter,
    ) -> Result<RowPage<Credential>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let mut query = read.build(MEASURED);
        for tenant in [scope.tenant(), filter.tenant.as_deref()].into_iter().flatten() {
            query.push(" and c.tenant_id = ").push_bind(text(tenant).into_owned());
        }
        if let Some(service) = &filter.service {
            query.push(" and c.service = ").push_bind(text(service).into_owned());
        }
        if let Some(status) = filter.status {
            // said in the text, or the indexes of those that are broken can't be used
            query.push(" and c.status = '").push(status.as_str()).push("'");
        }
        if let Some(before) = filter.before {
            query.push(" and c.id < ").push_bind(before);
        }
        push_page(&mut query, ("", "c.id"), filter.limit, (LISTED, PAGE_BYTES));
        let rows: Vec<PagedRow<Credential>> = query.finish().all().await?;
        read.end().await?;
        RowPage::of(rows, Ok)
    }

    /// Deletes a credential with its document. The record of its uses stays.
    pub async fn delete_credential(
        &self,
        scope: &Scope,
        tenant: &str,
        service: &str,
        account: &str,
        by: &str,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut write = self.db.write(scope).await?;
        let tx = &mut write.tx();
        let deleted: Option<StoredCredential> = tx
            .query(DELETE)
            .bind(text(tenant))
            .bind(text(service))
            .bind(text(account))
            .bind(scope.tenant())
            .optional()
            .await?;
        let deleted = deleted.ok_or(StoreError::NotFound)?;
        write_audit(tx, act(&deleted.credential, "credential.deleted", by, false), now).await?;
        write.commit().await?;
        Ok(())
    }
}

/// The audit entry for a credential: never its document.
fn act<'a>(credential: &'a Credential, action: &'a str, actor: &'a str, with_document: bool) -> AuditAction<'a> {
    let via = Actor::parse(actor).via().as_str();
    let body = json!({
        "credential": credential.reference().to_string(), "hosts": credential.hosts, "document": with_document,
        "version": credential.version,
    });
    AuditAction {
        tenant: &credential.tenant_id,
        actor,
        via,
        action,
        subject_type: "credential",
        subject_id: credential.id,
        body,
    }
}

const INSERT: &str = sql!(
    "insert into credentials (id, tenant_id, service, account, hosts, inject, oauth, created_at, updated_at, sealed,
                              generation, key_id, expires_at, status, version)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $8, $9, $10, $11, $12, 'active', 1)
     on conflict do nothing returning ",
    row::COLUMNS
);

const UPDATE: &str = sql!(
    "update credentials
        set hosts = $5, inject = $6, oauth = $7, updated_at = $8, version = version + 1,
            sealed = coalesce($9, sealed), generation = coalesce($10, generation), key_id = coalesce($11, key_id),
            expires_at = case when $9 is null then expires_at else $12 end,
            status = case when $9 is null then status else 'active' end,
            status_reason = case when $9 is null then status_reason end,
            refresh_lease = case when $9 is null then refresh_lease else 0 end,
            refresh_until = case when $9 is null then refresh_until end
      where tenant_id = $2 and service = $3 and account = $4 and version = $1
        and ($10 is null or generation + 1 = $10)
     returning ",
    row::COLUMNS
);

const SELECT_ONE: &str = sql!(
    "select ",
    row::COLUMNS,
    " from credentials
       where tenant_id = $1 and service = $2 and account = $3 and ($4 is null or tenant_id = $4)"
);

const DELETE: &str = sql!(
    "delete from credentials
      where tenant_id = $1 and service = $2 and account = $3 and ($4 is null or tenant_id = $4) returning ",
    row::COLUMNS
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    #[tokio::test]
    async fn on_sqlite_broken_credentials_are_found_by_their_indexes() {
        for (tenant, index) in [("", "credentials_broken_of_all"), (" and c.tenant_id = 'a'", "credentials_broken (")] {
            let statement = format!(
                "{MEASURED}{tenant} and c.status = 'needs_consent' order by c.id desc limit $1) select id from page"
            );
            let plan = sqlite_plan(&statement).await.join("; ");
            assert!(plan.contains(index), "{plan}");
        }
    }
}
