//! How a credential stands, for a task that waits for it.

use chrono::{DateTime, Utc};

use crate::domain::credential::{CredentialIssue, CredentialStatus};
use crate::store::db::text::text;
use crate::store::tx::Tx;
use crate::store::{Split, StoreError};

/// Before anything else in the transaction.
pub(in crate::store) const IN_TURN: Split = Split {
    postgres: "select pg_advisory_xact_lock(
                   hashtextextended(concat_ws('/', 'reveille_credential', current_schema(), $1::text, $2::text, $3::text), 0))",
    sqlite: "select $1, $2, $3",
};

pub(in crate::store) async fn lock_reference(
    tx: &mut Tx<'_>,
    tenant: &str,
    service: &str,
    account: &str,
) -> Result<(), StoreError> {
    tx.query(IN_TURN).bind(text(tenant)).bind(text(service)).bind(text(account)).execute().await?;
    Ok(())
}

/// How a credential stands.
pub(in crate::store) const STANDS: &str =
    "select status, updated_at from credentials where tenant_id = $1 and service = $2 and account = $3";

/// Whether a tenant has what was lacking, by now.
pub(in crate::store) async fn is_resolved(
    tx: &mut Tx<'_>,
    tenant: &str,
    issue: &CredentialIssue,
) -> Result<bool, StoreError> {
    let stored: Option<(String, DateTime<Utc>)> = tx
        .query(STANDS)
        .bind(tenant)
        .bind(&issue.credential.service)
        .bind(&issue.credential.account)
        .optional()
        .await?;
    Ok(resolves(issue, stored))
}

pub(in crate::store) fn resolves(issue: &CredentialIssue, stored: Option<(String, DateTime<Utc>)>) -> bool {
    stored.is_some_and(|(status, updated_at)| {
        CredentialStatus::parse(&status).is_some_and(|status| issue.is_resolved_by(status, updated_at))
    })
}
