//! Secrets of recipients' addresses, sealed for the recipient and the address that they belong to. Stores nothing.

use crate::notification::recipient::SecretPlace;
use crate::secret::Secret;
use crate::vault::{Context, Vault, VaultError};

/// The service that recipients' secrets are sealed for.
const SERVICE: &str = "recipient";

/// Seals a secret as its channel will look for it.
pub fn seal(vault: &Vault, recipient_id: &str, place: SecretPlace, secret: &Secret) -> Result<String, VaultError> {
    within(recipient_id, place, |context| vault.seal(context, secret))
}

/// Opens what was sealed for this place of this recipient.
pub fn unseal(vault: &Vault, recipient_id: &str, place: SecretPlace, sealed: &str) -> Result<Secret, VaultError> {
    within(recipient_id, place, |context| vault.unseal(context, sealed))
}

fn within<T>(recipient_id: &str, place: SecretPlace, act: impl FnOnce(&Context) -> T) -> T {
    let account = place.account();
    act(&Context { tenant: recipient_id, service: SERVICE, account: &account, field: place.field() })
}
