//! Documents of credentials: sealed for their row and their generation, so that one of yesterday, of another tenant or
//! of another account opens nowhere.

use chrono::{DateTime, Utc};

use crate::base::secret::Secret;
use crate::domain::credential::Reference;
use crate::ports::vault::{Context, Vault, VaultError};
use crate::store::{SealedDocument, StoredCredential};

impl Vault {
    /// A document, sealed to be stored as this generation.
    pub fn seal_document(
        &self,
        tenant: &str,
        reference: &Reference,
        generation: i64,
        document: &Secret,
        expires_at: Option<DateTime<Utc>>,
    ) -> Result<SealedDocument, VaultError> {
        let sealed = within(tenant, reference, generation, |context| self.seal(context, document))?;
        let key_id = Vault::key_of(&sealed).unwrap_or_default().to_owned();
        Ok(SealedDocument { sealed, generation, key_id, expires_at })
    }

    /// The document of a credential, as JSON text.
    pub fn open_document(&self, stored: &StoredCredential) -> Result<Secret, VaultError> {
        of(stored, |context| self.unseal(context, &stored.sealed))
    }

    /// The sealed document of a credential under the first master key; `None`: it is under that key already.
    pub fn rewrap_document(&self, stored: &StoredCredential) -> Result<Option<String>, VaultError> {
        of(stored, |context| self.rewrap(context, &stored.sealed))
    }

    /// Whether a configured key opens the document of a credential.
    pub fn opens_document(&self, stored: &StoredCredential) -> bool {
        of(stored, |context| self.can_open(context, &stored.sealed))
    }
}

fn of<T>(stored: &StoredCredential, act: impl FnOnce(&Context) -> T) -> T {
    within(&stored.credential.tenant_id, &stored.credential.reference(), stored.generation, act)
}

fn within<T>(tenant: &str, reference: &Reference, generation: i64, act: impl FnOnce(&Context) -> T) -> T {
    let field = format!("document/{generation}");
    act(&Context { tenant, service: &reference.service, account: &reference.account, field: &field })
}
