//! The secrets that one run has used so far: none of them comes back by another request of it either.
//!
//! A secret that is sent to a server may be read there again, by a request that carries no credential. So all requests
//! of a run share what it has used. It lies in memory while the run is executed; an execution that goes on where
//! another has ended recalls by the record of uses which credentials those were.
//!
//! A redactor of all that is known is built once it is needed, of a copy and outside the lock: what is added meanwhile
//! is in the next one. It knows all that was known when it was asked for, and so all that can be in a text that is
//! there by then.

use std::sync::{Arc, Mutex, MutexGuard};

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::base::compute::Compute;
use crate::base::id::Scope;
use crate::base::redact::{Redactor, secrets_of};
use crate::domain::credential::{DOCUMENT_TEXTS, RUN_SECRETS, Reference};
use crate::domain::run::Run;
use crate::ports::vault::Vault;
use crate::ports::vault::credentials::inject::parts;
use crate::ports::vault::credentials::reading_turn::ReadingTurn;
use crate::ports::vault::credentials::secret_document::SecretDocument;
use crate::ports::vault::credentials::secret_reader::SecretReader;
use crate::ports::vault::credentials::secret_set::{SecretSet, TooManySecrets};
use crate::store::{Store, StoreError, with_timeout};

/// By how much the clock that a use was recorded by may be behind the one that the run was.
const BEFORE: TimeDelta = TimeDelta::minutes(1);

/// Secrets that are known. Cheap to clone: all clones know the same. By default there are none.
#[derive(Clone, Default)]
pub struct UsedSecrets(Arc<SharedSecrets>);

#[derive(Default)]
struct SharedSecrets {
    known: Mutex<KnownSecrets>,
    /// Held by whoever builds a redactor: the others wait for it, and build none.
    building: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct KnownSecrets {
    set: SecretSet,
    /// Where redactors are built, and long texts read.
    turn: ReadingTurn,
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
        let known = Mutex::new(KnownSecrets { unread: Some(earlier), ..KnownSecrets::default() });
        UsedSecrets(Arc::new(SharedSecrets { known, ..SharedSecrets::default() }))
    }

    /// The secrets that a run has used, and those it may still use, read now.
    pub async fn load_for_run(
        store: &Store,
        vault: &Vault,
        run: &Run,
        named: &[Reference],
    ) -> Result<UsedSecrets, StoreError> {
        let used_secrets = UsedSecrets::of(run);
        used_secrets.load(store, vault).await?;
        used_secrets.read(store, vault, &run.tenant_id, named).await?;
        // so that it is there where a text is read in place
        used_secrets.reader().await;
        Ok(used_secrets)
    }

    /// A text without what is known, read in place.
    pub fn text(&self, text: &str) -> String {
        if self.is_empty() {
            return text.to_owned();
        }
        let built = self.known().set.built();
        let redactor = built.unwrap_or_else(|| {
            let snapshot = self.known().set.snapshot();
            let redactor = snapshot.build();
            self.known().set.keep(snapshot.version, redactor)
        });
        redactor.text(text).into_owned()
    }

    /// Whether there is something in a text that is known, or may be.
    pub async fn finds(&self, text: &str) -> bool {
        match self.reader().await {
            Some(reader) => reader.finds(text).await,
            None => false,
        }
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.known().set.is_empty()
    }

    /// A text without what is known; a long one is read aside, and nothing is shown of one that can't be.
    pub async fn cleaned(&self, text: String) -> String {
        match self.reader().await {
            Some(reader) => reader.text(text).await,
            None => text,
        }
    }

    /// Reads with what is known, on a thread that keeps nothing else waiting. `None`: nothing is known, or it could not
    /// be read.
    pub async fn read_off_thread<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Redactor) -> T + Send + 'static,
    ) -> Option<T> {
        self.reader().await?.read_off_thread(read).await
    }

    /// Finds all that is known by now. `None`: nothing is known.
    pub(super) async fn reader(&self) -> Option<SecretReader> {
        if self.is_empty() {
            return None;
        }
        let redactor = self.redactor().await;
        Some(SecretReader { redactor, turn: self.known().turn.clone() })
    }

    async fn redactor(&self) -> Arc<Redactor> {
        if let Some(built) = self.known().set.built() {
            return built;
        }
        let _building = self.0.building.lock().await;
        let (snapshot, turn) = {
            let known = self.known();
            if let Some(built) = known.set.built() {
                return built;
            }
            (known.set.snapshot(), known.turn.clone())
        };
        let (version, steps) = (snapshot.version, snapshot.steps());
        match turn.run_if_costly(steps, move || snapshot.build()).await {
            Some(redactor) => self.known().set.keep(version, redactor),
            // where none can be built, nothing is shown
            None => Arc::new(Redactor::hiding_all()),
        }
    }

    /// Redactors are built and long texts are read on these threads, in the turn of this tenant, from now on, unless a
    /// turn is known already: whose texts they are matters, and not whose credential was sent.
    pub fn read_in_turn(&self, compute: &Compute, tenant: &str) {
        self.known().turn.set(compute, tenant);
    }

    /// Looks for these, too, from now on. Where there are more than a run may have ([`RUN_SECRETS`]), no text is shown
    /// any more.
    pub fn add<'a>(&self, secrets: impl IntoIterator<Item = &'a str>) {
        let secrets: Vec<&str> = secrets.into_iter().collect();
        let mut known = self.known();
        if known.set.add(secrets).is_err() {
            known.set.hide_all();
        }
    }

    /// Looks for the texts of a document, too, from now on. Where it has more of them than a document may have, or
    /// there are more than a run may have ([`RUN_SECRETS`]), no text is shown any more.
    pub fn add_document(&self, texts: Vec<&str>) {
        if self.learn(&[], [texts]).is_err() {
            self.hide_all();
        }
    }

    /// Looks for what was made of documents, and for the texts of these, from now on. Where a document has more texts
    /// than it may have, no text is shown any more.
    ///
    /// # Errors
    /// There would be more than a run may have. None of them is looked for.
    pub(super) fn learn<'a>(
        &self,
        parts: &'a [Zeroizing<String>],
        documents: impl IntoIterator<Item = Vec<&'a str>>,
    ) -> Result<(), TooManySecrets> {
        let mut texts: Vec<&str> = parts.iter().map(|part| part.as_str()).collect();
        for document in documents {
            if document.len() > DOCUMENT_TEXTS {
                self.hide_all();
                return Ok(());
            }
            texts.extend(document);
        }
        self.known().set.add(texts)
    }

    fn hide_all(&self) {
        self.known().set.hide_all();
    }

    /// Looks for nothing any more. For what outlives runs: with each renewal of its credential it knows more texts.
    pub fn forget(&self) {
        self.known().set.clear();
    }

    /// Reads what earlier executions of the run have used, once.
    pub(super) async fn load(&self, store: &Store, vault: &Vault) -> Result<(), StoreError> {
        let Some(EarlierUses { tenant, run_id, since }) = self.known().unread.clone() else { return Ok(()) };
        let used = with_timeout(store.credentials_used_by(&tenant, run_id, since, RUN_SECRETS as i64 + 1)).await?;
        // each has a text at least
        match used.len() > RUN_SECRETS {
            true => self.hide_all_of(&tenant),
            false => self.read(store, vault, &tenant, &used).await?,
        }
        self.known().unread = None;
        Ok(())
    }

    /// Opens these credentials; those that are gone, or can't be opened, are left out. Where they have more texts than
    /// a run may have, no text is shown any more.
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
            if self.learn(&injected, [secrets_of(document.value())]).is_err() {
                self.hide_all_of(tenant);
                break;
            }
        }
        Ok(())
    }

    fn hide_all_of(&self, tenant: &str) {
        tracing::warn!(
            tenant_id = tenant,
            "a run has used more secrets than are looked for, nothing of what it reads is shown"
        );
        self.hide_all();
    }

    fn known(&self) -> MutexGuard<'_, KnownSecrets> {
        self.0.known.lock().expect("the lock of what is known")
    }
}

/// Not even how much it is.
impl std::fmt::Debug for UsedSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UsedSecrets")
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;

    use futures::FutureExt;

    use super::*;

    fn texts(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("secret-{n:04}")).collect()
    }

    fn add(used_secrets: &UsedSecrets, texts: &[String]) {
        used_secrets.add(texts.iter().map(String::as_str));
    }

    #[test]
    fn all_that_was_learnt_is_taken_out_by_all_who_know_it() {
        let used_secrets = UsedSecrets::default();
        assert_eq!(used_secrets.text("one-secret"), "one-secret");
        used_secrets.clone().add(["one-secret", "two-secret"]);
        used_secrets.add(["two-secret", "three-secret"]);
        assert_eq!(used_secrets.text("one-secret, two-secret, b25lLXNlY3JldA=="), "[redacted], [redacted], [redacted]");
        assert_eq!(format!("{used_secrets:?}"), "UsedSecrets");
        used_secrets.clone().forget();
        used_secrets.add(["four-secret"]);
        assert_eq!(used_secrets.text("one-secret, four-secret"), "one-secret, [redacted]");
    }

    #[tokio::test]
    async fn nothing_is_shown_once_a_document_has_more_texts_than_it_may_have() {
        let used_secrets = UsedSecrets::default();
        let texts = texts(DOCUMENT_TEXTS + 1);
        let of = |texts: &[String]| used_secrets.add_document(texts.iter().map(String::as_str).collect());
        of(&texts[..DOCUMENT_TEXTS]);
        assert_eq!(used_secrets.text("plain, secret-0000"), "plain, [redacted]");
        of(&texts);
        assert_eq!(used_secrets.text("plain"), "[redacted]");
        assert_eq!(used_secrets.cleaned("plain".into()).await, "[redacted]");
        assert!(used_secrets.finds("plain").await);
    }

    #[tokio::test]
    async fn nothing_is_shown_once_there_are_more_secrets_than_a_run_may_have() {
        let used_secrets = UsedSecrets::default();
        add(&used_secrets, &texts(RUN_SECRETS));
        assert_eq!(
            used_secrets.cleaned("plain, secret-0000, secret-0999".into()).await,
            "plain, [redacted], [redacted]"
        );
        let one_more = Zeroizing::new("one-secret-more".to_owned());
        assert_eq!(used_secrets.learn(std::slice::from_ref(&one_more), []), Err(TooManySecrets));
        assert_eq!(used_secrets.cleaned("plain".into()).await, "plain", "one that is refused changes nothing");
        used_secrets.add(["one-secret-more"]);
        assert_eq!(used_secrets.cleaned("plain".into()).await, "[redacted]");
    }

    #[tokio::test]
    async fn redactor_of_many_secrets_is_built_in_the_turn_of_its_tenant_and_locks_nobody_out() {
        let (compute, used_secrets) = (Compute::new(1), UsedSecrets::default());
        used_secrets.read_in_turn(&compute, "acme");
        add(&used_secrets, &texts(200));
        let (free, is_free) = mpsc::channel::<()>();
        let mut busy = pin!(compute.run("other", move || is_free.recv()));
        assert!((&mut busy).now_or_never().is_none(), "the only thread is taken");
        let mut first = pin!(used_secrets.cleaned("plain, secret-0007".into()));
        let mut second = pin!(used_secrets.finds("plain, secret-0007"));
        assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
        assert_eq!(compute.queued(), 1, "one of them builds, and the other waits for it");
        used_secrets.add(["added-meanwhile"]);
        free.send(()).unwrap();
        busy.await.unwrap().unwrap();
        assert_eq!((first.await, second.await), ("plain, [redacted]".to_owned(), true));
        assert_eq!(used_secrets.cleaned("secret-0007, added-meanwhile".into()).await, "[redacted], [redacted]");
    }

    #[tokio::test]
    async fn turn_of_the_tenant_whose_texts_are_read_is_kept_where_anothers_credential_is_sent() {
        let (calling, owning, used_secrets) = (Compute::new(1), Compute::new(1), UsedSecrets::default());
        used_secrets.read_in_turn(&calling, "ann");
        used_secrets.read_in_turn(&owning, "ops");
        add(&used_secrets, &texts(200));
        let (free, is_free) = mpsc::channel::<()>();
        let mut busy = pin!(calling.run("ben", move || is_free.recv()));
        assert!((&mut busy).now_or_never().is_none(), "the only thread is taken");
        let mut cleaned = pin!(used_secrets.cleaned("plain, secret-0007".into()));
        assert!((&mut cleaned).now_or_never().is_none());
        assert_eq!((calling.queued(), owning.queued()), (1, 0));
        free.send(()).unwrap();
        busy.await.unwrap().unwrap();
        assert_eq!(cleaned.await, "plain, [redacted]");
    }

    #[tokio::test]
    async fn redactor_of_few_secrets_is_built_in_place() {
        let (compute, used_secrets) = (Compute::new(1), UsedSecrets::default());
        used_secrets.read_in_turn(&compute, "acme");
        let (free, is_free) = mpsc::channel::<()>();
        let mut busy = pin!(compute.run("other", move || is_free.recv()));
        assert!((&mut busy).now_or_never().is_none(), "the only thread is taken");
        add(&used_secrets, &texts(5));
        assert_eq!(used_secrets.cleaned("plain, secret-0004".into()).now_or_never().unwrap(), "plain, [redacted]");
        free.send(()).unwrap();
        busy.await.unwrap().unwrap();
    }
}
