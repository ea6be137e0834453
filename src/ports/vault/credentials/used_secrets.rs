//! The secrets that one run has used so far: none of them comes back by another request of it either.
//!
//! What is sent to a server may be read there again, by a request that carries no credential. So all requests of a run
//! share what it has used. It lies in memory while the run is executed; an execution that goes on where another has ended
//! recalls by the record of uses which credentials those were.

use std::sync::{Arc, Mutex, MutexGuard};

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::base::compute::Compute;
use crate::base::id::Scope;
use crate::base::redact::{Redactor, longest, secrets_of};
use crate::domain::credential::{DOCUMENT_TEXTS, Reference};
use crate::domain::run::Run;
use crate::ports::vault::Vault;
use crate::ports::vault::credentials::inject::parts;
use crate::ports::vault::credentials::secret_document::SecretDocument;
use crate::ports::vault::credentials::secret_reader::SecretReader;
use crate::store::{Store, StoreError, with_timeout};

/// By how much the clock that a use was recorded by may be behind the one that the run was.
const BEFORE: TimeDelta = TimeDelta::minutes(1);

/// Secrets that are known. Cheap to clone: all clones know the same. By default there are none.
#[derive(Clone, Default)]
pub struct UsedSecrets(Arc<Mutex<SecretSet>>);

#[derive(Default)]
struct SecretSet {
    /// Sorted, each once.
    secrets: Vec<Zeroizing<String>>,
    /// There are more than these.
    hides_all: bool,
    /// `None`: nothing is known.
    redactor: Option<Arc<Redactor>>,
    /// The computing threads, and the tenant in whose turn they read.
    turn: Option<(Compute, String)>,
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
        match self.reader() {
            Some(reader) => reader.finds(text).await,
            None => false,
        }
    }

    /// Whether anything is known.
    pub fn is_empty(&self) -> bool {
        self.redactor().is_none()
    }

    /// A text without what is known; a long one is read aside, and nothing is shown of one that can't be.
    pub async fn cleaned(&self, text: String) -> String {
        match self.reader() {
            Some(reader) => reader.text(text).await,
            None => text,
        }
    }

    /// Reads with what is known, on a thread that keeps nothing else waiting. `None`: nothing is known, or it could not
    /// be read.
    pub async fn read_aside<T: Send + 'static>(&self, read: impl FnOnce(&Redactor) -> T + Send + 'static) -> Option<T> {
        self.reader()?.aside(read).await
    }

    pub(super) fn redactor(&self) -> Option<Arc<Redactor>> {
        self.kept().redactor.clone()
    }

    /// `None`: nothing is known.
    pub(super) fn reader(&self) -> Option<SecretReader> {
        let kept = self.kept();
        kept.redactor.clone().map(|redactor| SecretReader { redactor, turn: kept.turn.clone() })
    }

    /// Long texts are read on these threads, in the turn of this tenant, from now on.
    pub(super) fn read_in_turn(&self, compute: &Compute, tenant: &str) {
        self.kept().turn.get_or_insert_with(|| (compute.clone(), tenant.to_owned()));
    }

    /// Looks for these, too, from now on.
    pub fn add<'a>(&self, secrets: impl IntoIterator<Item = &'a str>) {
        self.learn(secrets, false);
    }

    /// Looks for the texts of a document, too, from now on. Of one with more of them than a document may have, the
    /// longest are known, and no text is shown any more.
    pub fn add_document(&self, texts: Vec<&str>) {
        let (texts, has_more) = longest(texts, DOCUMENT_TEXTS);
        self.learn(texts, has_more);
    }

    fn learn<'a>(&self, secrets: impl IntoIterator<Item = &'a str>, has_more: bool) {
        let mut kept = self.kept();
        let before = (kept.secrets.len(), kept.hides_all);
        kept.hides_all |= has_more;
        for secret in secrets {
            if let Err(at) = kept.secrets.binary_search_by(|known| known.as_str().cmp(secret)) {
                kept.secrets.insert(at, Zeroizing::new(secret.to_owned()));
            }
        }
        if (kept.secrets.len(), kept.hides_all) != before {
            let redactor = Redactor::new(kept.secrets.iter().map(|secret| secret.as_str()));
            kept.redactor = Some(Arc::new(if kept.hides_all { redactor.hiding_all() } else { redactor }));
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
        self.read_in_turn(store.computing(), tenant);
        for reference in named {
            let asked = store.find_credential(&Scope::Every, tenant, &reference.service, &reference.account);
            let Some(stored) = with_timeout(asked).await? else { continue };
            let Some(document) = vault.open_document(&stored).ok().and_then(|secret| SecretDocument::read(&secret))
            else {
                tracing::warn!(tenant_id = tenant, credential = %reference, "a credential that a run has used can't be opened");
                continue;
            };
            let injected = stored.credential.inject.map_or_else(Vec::new, |how| parts(&how, document.value()));
            self.add(injected.iter().map(|part| part.as_str()));
            self.add_document(secrets_of(document.value()));
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

    #[tokio::test]
    async fn nothing_is_shown_once_a_document_has_more_texts_than_it_may_have() {
        let known = UsedSecrets::default();
        let texts: Vec<String> = (0..=DOCUMENT_TEXTS).map(|n| format!("secret-{n:04}{}", "x".repeat(n))).collect();
        let of = |texts: &[String]| known.add_document(texts.iter().map(String::as_str).collect());
        of(&texts[..DOCUMENT_TEXTS]);
        of(&texts[..DOCUMENT_TEXTS]);
        assert_eq!(known.kept().secrets.len(), DOCUMENT_TEXTS, "each is known once");
        assert_eq!(known.text("plain, secret-0000"), "plain, [redacted]");
        of(&texts);
        assert_eq!(known.kept().secrets.len(), DOCUMENT_TEXTS + 1);
        assert_eq!(known.text("plain"), "[redacted]");
        assert_eq!(known.cleaned("plain".into()).await, "[redacted]");
        assert!(known.finds("plain").await);

        let fresh = UsedSecrets::default();
        fresh.add_document(texts.iter().map(String::as_str).collect());
        assert_eq!(fresh.kept().secrets.len(), DOCUMENT_TEXTS);
        assert!(!fresh.kept().secrets.iter().any(|secret| **secret == texts[0]), "the shortest is left out");
    }
}
