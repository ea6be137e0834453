//! Writing a credential in the place of whatever is there: it is sealed for the row that was read, and written over
//! that row alone, whoever writes at the same time.

use crate::base::id::Scope;
use crate::domain::credential::Reference;
use crate::store::{CredentialRowDraft, SavedCredential, Store, StoreError, StoredCredential};

/// How often a write is tried against writes of others.
const WRITES: usize = 5;

/// Writes what `make` makes of the stored credential, if there is one, and answers what is stored then. Where somebody
/// else was faster it is made anew: the last one wins. One that keeps the stored document is not: that may be another
/// by now.
///
/// # Errors
/// Those of `make`, and the store's: [`StoreError::Conflict`] with what to do where others were faster.
pub async fn replace<E: From<StoreError>>(
    store: &Store,
    scope: &Scope,
    tenant: &str,
    reference: &Reference,
    make: impl Fn(Option<&StoredCredential>) -> Result<CredentialRowDraft, E>,
) -> Result<SavedCredential, E> {
    let Reference { service, account } = reference;
    for _ in 0..WRITES {
        let old = store.find_credential(scope, tenant, service, account).await?;
        let new = make(old.as_ref())?;
        match store.put_credential(scope, &new, old.map_or(0, |old| old.credential.version)).await {
            Err(StoreError::Conflict(_)) if new.document.is_some() => {}
            Err(StoreError::Conflict(_)) => {
                let why = "the credential was written meanwhile; read it and try again";
                return Err(StoreError::Conflict(why.into()).into());
            }
            done => return Ok(done?),
        }
    }
    Err(StoreError::Conflict("the credential is being changed by others all the time; try again".into()).into())
}
