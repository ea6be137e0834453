//! What the owner of a credential is told when it can't be renewed any more: once for each time it was connected.

use crate::credential::Credential;
use crate::id::Scope;
use crate::notification::dedupe;
use crate::notification::new_delivery::channels;
use crate::notification::wording::{Trouble, credential_trouble};
use crate::notification::{Kind, NewDelivery};
use crate::store::{Store, StoreError};
use crate::task::Output;

/// Puts the notice into the outbox. The key is of the version that could not be renewed, so telling again tells nothing.
/// An owner who has no address can't be told; the credential says it all the same.
pub async fn needs_consent(store: &Store, credential: &Credential, why: &str) -> Result<(), StoreError> {
    let tenant = credential.tenant_id.as_str();
    let recipient = match store.get_recipient(&Scope::Every, tenant).await {
        Ok(stored) => stored.recipient,
        Err(StoreError::NotFound) => return Ok(()),
        Err(error) => return Err(error),
    };
    let order = channels(&Output::default(), Some(&recipient));
    let Some((first, fallback)) = order.split_first() else { return Ok(()) };
    let (subject, text) = credential_trouble(&credential.reference(), Trouble::NeedsConsent, None);
    store
        .post_delivery(&NewDelivery {
            tenant_id: tenant.to_owned(),
            recipient: tenant.to_owned(),
            channel: first.clone(),
            fallback: fallback.to_vec(),
            dedupe_key: dedupe::notice("credential", credential.id, credential.version),
            run_id: None,
            kind: Kind::Notice,
            urgency: Kind::Notice.urgency(),
            subject: Some(subject),
            text: Some(format!("{text} The reason: {why}.")),
        })
        .await
}
