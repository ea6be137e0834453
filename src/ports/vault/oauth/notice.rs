//! Telling the owner of a credential that it can't be renewed any more: once for each document.

use crate::domain::notification::credential_ended::ended;
use crate::store::{Store, StoreError, StoredCredential};

/// Puts the notice into the outbox; telling again tells nothing. An owner who has no address can't be told; the
/// credential says it all the same.
pub async fn needs_consent(store: &Store, stored: &StoredCredential, why: &str) -> Result<(), StoreError> {
    let Some(recipient) = store.recipient_to_tell(&stored.credential.tenant_id).await? else { return Ok(()) };
    match ended(&stored.credential, stored.generation, Some(&recipient), Some(why)) {
        Some(notice) => store.post_delivery(&notice).await,
        None => Ok(()),
    }
}
