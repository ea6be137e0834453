//! The secrets that one run has used so far: none of them comes back by another request of it either.
//!
//! What is sent to a server may be read there again, by a request that carries no credential. So all requests of a run
//! share what it has used. It lies in memory while the run is executed; an execution that goes on where another has ended
//! recalls by the record of uses which credentials those were.

use std::sync::{Arc, Mutex, MutexGuard};

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::base::id::Scope;
use crate::base::redact::{Redactor, secrets_of};
use crate::base::secret::REDACTED;
use crate::domain::credential::Reference;
use crate::domain::run::Run;
use crate::ports::vault::Vault;
use crate::ports::vault::credentials::inject::parts;
use crate::ports::vault::credentials::secret_document::{READ_ASIDE, SecretDocument};
use crate::store::{Store, StoreError, with_timeout};

/// By how much the clock that a use was recorded by may be behind the one that the run was.
const BEFORE: TimeDelta = TimeDelta::minutes(1);

/// Secrets that are known. Cheap to clone: all clones know the same. By default there are none.
#[derive(Clone, Default)]
pub struct UsedSecrets(Arc<Mutex<SecretSet>>);

#[derive(Default)]
struct SecretSet {
    secrets: Vec<Zeroizing<String>>,
    /// `None`: nothing is known.
    redactor: Option<Arc<Redactor>>,
    /// The run whose earlier uses are yet to be read.
    unread: Option<EarlierUses>,
}

/// The uses of a run by executions that have ended.
#[derive(Debug, Clone)]
struct EarlierUses {
    tenant: String,
    run_id: Uuid,
    since: DateTime<Utc>,
}

impl UsedSecrets {
    /// The secrets known of a run that is executed, for the first time or once more.
    pub fn of(run: &Run) -> UsedSecrets {
        let earlier = EarlierUses { tenant: run.tenant_id.clone(), run_id: run.id, since: run.created_at - BEFORE };
        UsedSecrets(Arc::new(Mutex::new(SecretSet { unread: Some(earlier), ..SecretSet::default() })))
    }

    /// The secrets that a run has used, and those it may still use, read now.
    pub async fn load_for_run(
        store: &Store,
        vault: &Vault,
        run: &Run,
        named: &[Reference],
    ) -> Result<UsedSecrets, StoreError> {
        let known = UsedSecrets::of(run);
        known.load(store, vault).await?;
        known.read(store, vault, &run.tenant_id, named).await?;
        Ok(known)
    }

    /// A text without what is known.
    pub fn text(&self, text: &str) -> String {
        self.redactor().map_or_else(|| text.to_owned(), |redactor| redactor.text(text).into_owned())
    }

    /// Whether there is something in a text that is known, or may be.
    pub async fn finds(&self, text: &str) -> bool {
        let Some(redactor) = self.redactor() else { return false };
        if text.len() <= READ_ASIDE {
            return redactor.contains_secret(text.as_bytes());
        }
        let text = text.to_owned();
        tokio::task::spawn_blocking(move || redactor.contains_secret(text.as_bytes())).await.unwrap_or(true)
    }

    /// Whether anything is known.
    pub fn is_empty(&self) -> bool {
        self.redactor().is_none()
    }

    /// A text without what is known; a long one is read aside, and nothing is shown of one that can't be.
    pub async fn cleaned(&self, text: String) -> String {
        match self.redactor() {
            None => text,
            Some(redactor) if text.len() <= READ_ASIDE => redactor.text(&text).into_owned(),
            Some(redactor) => tokio::task::spawn_blocking(move || redactor.text(&text).into_owned())
                .await
                .unwrap_or_else(|_| REDACTED.to_owned()),
        }
    }

    pub(super) fn redactor(&self) -> Option<Arc<Redactor>> {
        self.kept().redactor.clone()
    }

    /// Looks for these, too, from now on.
    pub fn add<'a>(&self, secrets: impl IntoIterator<Item = &'a str>) {
        let mut kept = self.kept();
        let before = kept.secrets.len();
        for secret in secrets {
            if !kept.secrets.iter().any(|known| known.as_str() == secret) {
                kept.secrets.push(Zeroizing::new(secret.to_owned()));
            }
        }
        if kept.secrets.len() > before {
            let redactor = Redactor::new(kept.secrets.iter().map(|secret| secret.as_str()));
            kept.redactor = Some(Arc::new(redactor));
        }
    }

    /// Reads what earlier executions of the run have used, once.
    pub(super) async fn load(&self, store: &Store, vault: &Vault) -> Result<(), StoreError> {
        let Some(EarlierUses { tenant, run_id, since }) = self.kept().unread.clone() else { return Ok(()) };
        let used = with_timeout(store.credentials_used_by(&tenant, run_id, since)).await?;
        self.read(store, vault, &tenant, &used).await?;
        self.kept().unread = None;
        Ok(())
    }

    /// Opens these credentials; what is gone, or can't be opened, is left out.
    async fn read(&self, store: &Store, vault: &Vault, tenant: &str, named: &[Reference]) -> Result<(), StoreError> {
        for reference in named {
            let asked = store.find_credential(&Scope::Every, tenant, &reference.service, &reference.account);
            let Some(stored) = with_timeout(asked).await? else { continue };
            let Some(document) = vault.open_document(&stored).ok().and_then(|secret| SecretDocument::read(&secret))
            else {
                tracing::warn!(tenant_id = tenant, credential = %reference, "a credential that a run has used can't be opened");
                continue;
            };
            let injected = stored.credential.inject.map_or_else(Vec::new, |how| parts(&how, document.value()));
            self.add(injected.iter().map(|part| part.as_str()).chain(secrets_of(document.value())));
        }
        Ok(())
    }

    fn kept(&self) -> MutexGuard<'_, SecretSet> {
        self.0.lock().expect("the lock of what is known")
    }
}

/// Not even how much it is.
impl std::fmt::Debug for UsedSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Known")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_was_learnt_is_taken_out_by_all_who_know_it() {
        let known = UsedSecrets::default();
        assert_eq!(known.text("one-secret"), "one-secret");
        known.clone().add(["one-secret", "two-secret"]);
        known.add(["two-secret", "three-secret"]);
        assert_eq!(known.text("one-secret, two-secret, b25lLXNlY3JldA=="), "[redacted], [redacted], [redacted]");
        assert_eq!(format!("{known:?}"), "Known");
    }
}
