//! A row of `credentials`, and what it is read as.

use sqlx::FromRow;

use crate::domain::credential::{Credential, CredentialStatus};
use crate::store::Split;
use crate::store::columns::Columns;
use crate::store::db::listing::fitting;

pub(in crate::store) const COLUMNS: &str =
    "id, tenant_id, service, account, sealed, generation, key_id, hosts, inject, oauth, status, status_reason,
     expires_at, version, created_at, updated_at, last_used_at";

/// Followed by the credentials that are listed. A list shows no documents, so it reads none.
pub(super) const LISTED: Split = fitting!(LISTED_COLUMNS, "c.id");
const LISTED_COLUMNS: &str = "select c.id, c.tenant_id, c.service, c.account, c.hosts, c.inject, c.oauth, c.status,
    c.status_reason, c.expires_at, c.version, c.created_at, c.updated_at, c.last_used_at
  from credentials c ";
pub(super) const MEASURED: &str = "with page as materialized (
    select c.id, octet_length(cast(c.hosts as text)) + coalesce(octet_length(cast(c.inject as text)), 0)
                 + coalesce(octet_length(cast(c.oauth as text)), 0) + coalesce(octet_length(c.status_reason), 0) as bytes
      from credentials c where true";

impl<'r, R: Columns> FromRow<'r, R> for Credential {
    fn from_row(row: &'r R) -> Result<Credential, sqlx::Error> {
        Ok(Credential {
            id: row.value("id")?,
            tenant_id: row.value("tenant_id")?,
            service: row.value("service")?,
            account_name: row.value("account")?,
            hosts: row.document("hosts")?,
            inject: row.optional_document("inject")?,
            oauth: row.optional_document("oauth")?,
            status: row.word("status", CredentialStatus::parse)?,
            status_reason: row.value("status_reason")?,
            expires_at: row.value("expires_at")?,
            version: row.value("version")?,
            created_at: row.value("created_at")?,
            updated_at: row.value("updated_at")?,
            last_used_at: row.value("last_used_at")?,
        })
    }
}
