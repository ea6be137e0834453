//! A credential as it is to be written in the place of another, or of none.

use chrono::{DateTime, Utc};

use crate::base::id::Tenant;
use crate::base::invalid::ValidationErrors;
use crate::domain::credential::{CredentialDraft, Reference, check_name};
use crate::ports::vault::{Vault, VaultError};
use crate::store::{CredentialRowDraft, StoreError, StoredCredential, next_generation};

/// Why a credential is not written.
#[derive(Debug, thiserror::Error)]
pub enum SaveFault {
    /// Its name, or what is to be written, has faults.
    #[error("{0}")]
    Invalid(#[from] ValidationErrors),
    /// The stored document can't be opened, or the new one can't be sealed.
    #[error("{0}")]
    Vault(#[from] VaultError),
    /// The store is away, or somebody else has written it meanwhile.
    #[error("{0}")]
    Store(#[from] StoreError),
}

/// The credential to write in the place of `old`, for `by`.
///
/// # Errors
/// Faults of the draft beside what is stored, and those of the vault.
pub fn credential_to_store(
    vault: &Vault,
    (tenant, reference): (&Tenant, &Reference),
    (draft, by): (&CredentialDraft, String),
    old: Option<&StoredCredential>,
    now: DateTime<Utc>,
) -> Result<CredentialRowDraft, SaveFault> {
    let document = match (&draft.document, old) {
        (Some(document), _) => {
            let generation = next_generation(old, now);
            Some(vault.seal_document(tenant.as_str(), reference, generation, document, draft.expires_at)?)
        }
        (None, Some(old)) => {
            draft.check_hosts(&old.credential)?;
            if draft.inject.is_some() {
                draft.check_document(&vault.open_document(old)?)?;
            }
            None
        }
        (None, None) => {
            return Err(ValidationErrors::one("/document", "is needed: nothing is stored under this name").into());
        }
    };
    Ok(CredentialRowDraft {
        tenant_id: tenant.as_str().to_owned(),
        service: reference.service.clone(),
        account_name: reference.account.clone(),
        hosts: draft.hosts.clone(),
        inject: draft.inject.clone(),
        oauth: draft.oauth.clone(),
        document,
        by,
    })
}

/// Whether a credential can have this name.
///
/// # Errors
/// The parts of the name that it can't have.
pub fn check_reference(reference: &Reference) -> Result<(), ValidationErrors> {
    let mut faults = ValidationErrors::new();
    for (place, name) in [("/service", &reference.service), ("/account_name", &reference.account)] {
        if let Err(why) = check_name(name) {
            faults.add(place, why);
        }
    }
    faults.into_result(())
}
