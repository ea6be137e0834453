//! A row of `credentials`, and what it is read as.

use chrono::{DateTime, Utc};
use sqlx::types::Json;
use uuid::Uuid;

use crate::domain::credential::{Credential, CredentialStatus, Inject, OAuth};
use crate::store::{StoreError, StoredCredential};

pub(in crate::store) const COLUMNS: &str =
    "id, tenant_id, service, account, sealed, generation, key_id, hosts, inject, oauth, status, status_reason,
     expires_at, version, created_at, updated_at, last_used_at";

/// Followed by the credentials that are listed. A list shows no documents, so it reads none.
pub(super) const LISTED: &str = "select c.id, c.tenant_id, c.service, c.account, '' as sealed, c.generation, c.key_id,
    c.hosts, c.inject, c.oauth, c.status, c.status_reason, c.expires_at, c.version, c.created_at, c.updated_at,
    c.last_used_at
  from credentials c join fit on fit.id = c.id";
pub(super) const MEASURED: &str = "with page as materialized (
    select c.id, octet_length(cast(c.hosts as text)) + coalesce(octet_length(cast(c.inject as text)), 0)
                 + coalesce(octet_length(cast(c.oauth as text)), 0) + coalesce(octet_length(c.status_reason), 0) as bytes
      from credentials c where true";

#[derive(sqlx_macros::FromRow)]
pub(super) struct CredentialRow {
    id: Uuid,
    tenant_id: String,
    service: String,
    account: String,
    sealed: String,
    generation: i64,
    key_id: String,
    hosts: Json<Vec<String>>,
    inject: Option<Json<Inject>>,
    oauth: Option<Json<OAuth>>,
    status: String,
    status_reason: Option<String>,
    expires_at: Option<DateTime<Utc>>,
    version: i64,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    last_used_at: Option<DateTime<Utc>>,
}

impl CredentialRow {
    pub(super) fn stored(self) -> Result<StoredCredential, StoreError> {
        let status = CredentialStatus::parse(&self.status)
            .ok_or_else(|| StoreError::Corrupt(format!("credential {} has the status {}", self.id, self.status)))?;
        Ok(StoredCredential {
            credential: Credential {
                id: self.id,
                tenant_id: self.tenant_id,
                service: self.service,
                account_name: self.account,
                hosts: self.hosts.0,
                inject: self.inject.map(|inject| inject.0),
                oauth: self.oauth.map(|oauth| oauth.0),
                status,
                status_reason: self.status_reason,
                expires_at: self.expires_at,
                version: self.version,
                created_at: self.created_at,
                updated_at: self.updated_at,
                last_used_at: self.last_used_at,
            },
            sealed: self.sealed,
            generation: self.generation,
            key_id: self.key_id,
        })
    }
}
