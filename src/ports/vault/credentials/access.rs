//! Access to stored credentials: found, opened and renewed for a use, and each use on the record.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use url::Url;

use crate::base::clock::pause;
use crate::base::id::{Scope, new_id};
use crate::base::redact::all_secrets_of;
use crate::base::secret::Secret;
use crate::domain::credential::{Credential, CredentialStatus, CredentialUse, Inject, Reference};
use crate::ports::vault::Vault;
use crate::ports::vault::credentials::inject::parts;
use crate::ports::vault::credentials::secret_document::SecretDocument;
use crate::ports::vault::credentials::secret_set::TooManySecrets;
use crate::ports::vault::credentials::unusable::{busy, not_renewed, too_many};
use crate::ports::vault::credentials::{
    CredentialError, CredentialFault, FetchError, Renewal, RenewalError, Use, UsedSecrets, hosts,
};
use crate::store::{Store, StoreError, StoredCredential, UseFilter, with_timeout};

/// The wait before a store that is away is asked again what a run has used.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// The longest that code waits for it.
const LOADED_WITHIN: Duration = Duration::from_secs(10);

/// Finds, opens and renews credentials for a use, and puts each use on the record.
#[derive(Clone)]
pub struct CredentialAccess {
    pub store: Store,
    pub vault: Vault,
    pub renewal: Option<Arc<dyn Renewal>>,
}

impl CredentialAccess {
    /// Reads what the run has used before. A store that is away for a moment costs the request time, and nothing else.
    pub async fn load_used(&self, used_secrets: &UsedSecrets) -> Result<(), StoreError> {
        loop {
            match used_secrets.load(&self.store, &self.vault).await {
                Err(StoreError::Unavailable(why) | StoreError::TimedOut(why)) => {
                    tracing::debug!(why, "what a run has used before can't be read yet, it is asked for again");
                    pause(ASK_AGAIN).await;
                }
                done => return done,
            }
        }
    }

    /// As [`CredentialAccess::load_used`], but not for long.
    pub async fn load_in_time(&self, used_secrets: &UsedSecrets) -> Result<(), String> {
        match timeout(LOADED_WITHIN, self.load_used(used_secrets)).await {
            Ok(loaded) => loaded.map_err(|error| error.to_string()),
            Err(_) => Err("the store is unavailable".into()),
        }
    }

    /// Everything that can be found out before the credential is used.
    pub async fn open(&self, url: &Url, is_opened: bool, with: &Use<'_>) -> Result<CredentialInUse, CredentialError> {
        let error = |kind, why: String| CredentialError::new(kind, with.reference, why);
        let stored = self.find(with).await?;
        let Credential { hosts, inject, .. } = &stored.credential;
        if let Err(why) = hosts::check_bound(hosts, url, is_opened) {
            return Err(error(CredentialFault::NotForHost, why));
        }
        let nowhere =
            || error(CredentialFault::NoInject, "it does not say how it is put into requests (`inject`)".into());
        let inject = inject.clone().ok_or_else(nowhere)?;
        let document = self.document(&stored, with).await?;
        Ok(CredentialInUse { stored, inject, document, former: None })
    }

    /// The credential, where it may be used.
    async fn find(&self, with: &Use<'_>) -> Result<StoredCredential, CredentialError> {
        let error = |kind, why: String| CredentialError::new(kind, with.reference, why);
        let Reference { service, account } = with.reference;
        let scope = Scope::Only(with.tenant.clone());
        let asked = self.store.find_credential(&scope, with.tenant.as_str(), service, account);
        let Some(stored) = with_timeout(asked).await.map_err(|error| busy(with, &error))? else {
            let last_used = self.last_used(with).await.map_err(|error| busy(with, &error))?;
            return Err(CredentialError { last_used, ..error(CredentialFault::Missing, String::new()) });
        };
        match &stored.credential {
            Credential { status: CredentialStatus::NeedsConsent, status_reason, .. } => {
                Err(error(CredentialFault::NeedsConsent, status_reason.clone().unwrap_or_default()))
            }
            _ => Ok(stored),
        }
    }

    /// The document in the clear, renewed where it has to be.
    async fn document(&self, stored: &StoredCredential, with: &Use<'_>) -> Result<SecretDocument, CredentialError> {
        let secret = self.unsealed(stored, with)?;
        let secret = match &self.renewal {
            Some(renewal) if stored.credential.oauth.is_some() => match renewal.fresh(stored, secret, false).await {
                Ok(fresh) => fresh,
                // it may still do: the other side has the last word
                Err(RenewalError::Impossible) => self.unsealed(stored, with)?,
                Err(error) => return Err(not_renewed(with, error)),
            },
            _ => secret,
        };
        SecretDocument::read(&secret)
            .ok_or_else(|| CredentialError::new(CredentialFault::Unreadable, with.reference, String::new()))
    }

    /// The document for code of this process. Its secrets are known from now on, and the use is on the record; one with
    /// more secrets than the run may still use is not handed out.
    pub async fn read(&self, with: &Use<'_>, used_secrets: &UsedSecrets) -> Result<SecretDocument, CredentialError> {
        self.load_in_time(used_secrets)
            .await
            .map_err(|why| CredentialError::new(CredentialFault::Busy, with.reference, why))?;
        let read = match self.find(with).await {
            Ok(stored) => self
                .document(&stored, with)
                .await
                .and_then(|document| self.known_document(&stored, document, with, used_secrets)),
            Err(error) => Err(error),
        };
        let outcome = read.as_ref().map_or_else(|error| error.kind.outcome(), |_| CredentialUse::USED);
        let noted = self.record(String::new(), with, outcome).await;
        let document = read?;
        noted.map_err(|error| busy(with, &error))?;
        Ok(document)
    }

    /// The document, once its secrets are known.
    fn known_document(
        &self,
        stored: &StoredCredential,
        document: SecretDocument,
        with: &Use<'_>,
        used_secrets: &UsedSecrets,
    ) -> Result<SecretDocument, CredentialError> {
        used_secrets.read_in_turn(self.store.computing(), with.tenant.as_str());
        let injected = stored.credential.inject.as_ref().map_or_else(Vec::new, |how| parts(how, document.value()));
        let secrets = all_secrets_of(document.value());
        let texts: Vec<&str> = secrets.iter().map(|secret| secret.as_str()).collect();
        match used_secrets.learn(&injected, [texts]) {
            Ok(()) => Ok(document),
            Err(TooManySecrets) => Err(too_many(with)),
        }
    }

    async fn last_used(&self, with: &Use<'_>) -> Result<i64, StoreError> {
        let filter = UseFilter {
            service: Some(with.reference.service.clone()),
            account: Some(with.reference.account.clone()),
            outcome: Some(CredentialUse::USED),
            limit: 1,
            ..UseFilter::default()
        };
        let uses = with_timeout(self.store.credential_uses(&Scope::Only(with.tenant.clone()), &filter)).await?;
        Ok(uses.first().map_or(0, |used| used.at.timestamp_millis()))
    }

    fn unsealed(&self, stored: &StoredCredential, with: &Use<'_>) -> Result<Secret, CredentialError> {
        self.vault.open_document(stored).map_err(|error| {
            tracing::error!(tenant_id = with.tenant.as_str(), credential = %with.reference, %error, "a credential can't be opened");
            CredentialError::new(CredentialFault::Unreadable, with.reference, error.to_string())
        })
    }

    /// The credential after a refusal, if it can be renewed.
    pub async fn renew(
        &self,
        refused: &CredentialInUse,
        with: &Use<'_>,
    ) -> Result<Option<CredentialInUse>, FetchError> {
        let CredentialInUse { stored, inject, document, .. } = refused;
        let Some(renewal) = self.renewal.as_ref().filter(|_| stored.credential.oauth.is_some()) else {
            return Ok(None);
        };
        match renewal.fresh(stored, document.text(), true).await {
            Ok(fresh) => Ok(SecretDocument::read(&fresh).map(|renewed| CredentialInUse {
                stored: stored.clone(),
                inject: inject.clone(),
                document: renewed,
                // an answer may still name what it was sent before
                former: document.text().into(),
            })),
            Err(RenewalError::Impossible) => Ok(None),
            Err(error) => Err(not_renewed(with, error).into()),
        }
    }

    /// Keeps the scopes that the other side asks for with the credential of an account, whose next link asks for them.
    pub async fn keep_missed_scopes(&self, with: &Use<'_>, asked: &[String]) {
        if let Err(error) = with_timeout(self.note_missed_scopes(with, asked)).await {
            tracing::warn!(credential = %with.reference, %error, "scopes that a credential misses could not be kept");
        }
    }

    async fn note_missed_scopes(&self, with: &Use<'_>, asked: &[String]) -> Result<(), StoreError> {
        let Reference { service, account } = with.reference;
        let scope = Scope::Only(with.tenant.clone());
        let stored = self.store.find_credential(&scope, with.tenant.as_str(), service, account).await?;
        let Some(Credential { id, version, oauth: Some(oauth), .. }) = stored.map(|stored| stored.credential) else {
            return Ok(());
        };
        if let Some(oauth) = oauth.missing(asked) {
            // one that is written just now is asked again by the next call
            self.store.note_missed_scopes(id, version, &oauth).await?;
        }
        Ok(())
    }

    /// Records an attempt that was refused.
    pub async fn record_failure(&self, url: &Url, with: &Use<'_>, error: CredentialError) -> FetchError {
        if let Err(error) = self.record_use(url, with, error.kind.outcome()).await {
            tracing::warn!(credential = %with.reference, %error, "a refused use of a credential could not be recorded");
        }
        error.into()
    }

    /// Records that what was sent was refused, in the place of its use.
    pub async fn record_refused(&self, url: &Url, with: &Use<'_>, used: &CredentialUse) -> CredentialError {
        let outcome = CredentialFault::Refused.outcome();
        if let Err(error) = with_timeout(self.store.mark_credential_use(used.id, outcome)).await {
            tracing::warn!(credential = %with.reference, %error, "a credential was refused; that could not be recorded");
        }
        let why = format!("{} answered 401", hosts::host_and_port(url));
        CredentialError {
            sent_at: Some(used.at),
            ..CredentialError::new(CredentialFault::Refused, with.reference, why)
        }
    }

    /// Keeps a use of a credential in a request to `url`.
    pub async fn record_use(&self, url: &Url, with: &Use<'_>, outcome: &str) -> Result<CredentialUse, StoreError> {
        self.record(hosts::host_and_port(url), with, outcome).await
    }

    async fn record(&self, host: String, with: &Use<'_>, outcome: &str) -> Result<CredentialUse, StoreError> {
        let now = self.store.clock().now();
        let used = CredentialUse {
            id: new_id(now),
            tenant_id: with.tenant.as_str().to_owned(),
            service: with.reference.service.clone(),
            account_name: with.reference.account.clone(),
            at: now,
            run_id: with.run_id,
            task_id: with.task_id,
            used_by: with.by.to_owned(),
            host,
            outcome: outcome.to_owned(),
        };
        with_timeout(self.store.note_credential_use(&used)).await?;
        Ok(used)
    }
}

/// A credential that is in use.
pub struct CredentialInUse {
    pub stored: StoredCredential,
    pub inject: Inject,
    pub document: SecretDocument,
    /// As it was before it was renewed.
    pub former: Option<Secret>,
}
