//! Renewing access tokens (RFC 6749, section 6): ahead of their end, one at a time over all instances.
//!
//! A caller that finds a token due claims a lease on its row; the others go on with the old token while it is good,
//! else they wait for what the first one brings. The work is done in a task of its own, so that a run that is
//! cancelled, or a tool that is out of time, does not throw away what the provider has given. The answer is stored, the
//! new refresh token with it, before anybody uses it; storing is tried again for a minute where the database is away,
//! and the lease lasts as long. Should it be lost all the same, the answer is still stored over the very document that
//! it was made from.
//!
//! A crash costs nothing as a rule: a lease ends by itself, and the next use renews. One moment is an exception:
//! between the provider's answer and the end of our write the rotated refresh token is in this process alone. If it
//! dies just then, or the answer is lost on the way, the provider has already spent the old one. Providers that give
//! some grace take it once more; those that don't answer `invalid_grant`, and the owner is asked to connect the account
//! again. No client can do better: the provider's step and ours are not one.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::base::clock::{pause, to_delta};
use crate::base::id::Scope;
use crate::base::secret::Secret;
use crate::domain::credential::{Credential, CredentialStatus, OAuth};
use crate::ports::vault::oauth::client::is_document;
use crate::ports::vault::oauth::discovery::{DISCOVERED_WITHIN, KEPT_FOR, LOOKED_ANEW_AFTER};
use crate::ports::vault::oauth::endpoint::{Endpoint, EndpointRefusal, TIMEOUT};
use crate::ports::vault::oauth::tokens::{Age, OAuthTokenResponse, OAuthTokens};
use crate::ports::vault::oauth::{OAuthError, Shared, notice};
use crate::store::{SealedDocument, StoreError, StoredCredential, next_generation, with_timeout};

/// For so long what the provider has given is offered to the store.
const STORING: Duration = Duration::from_secs(60);
/// How long an answer of the store is waited for.
const ANSWER: Duration = Duration::from_secs(10);
/// How long whoever renews has for it: the time to find the endpoint, and the endpoint's, that of storing with the last
/// answer, and some for a slow machine. After it another may.
pub const LEASE: Duration =
    DISCOVERED_WITHIN.saturating_add(TIMEOUT).saturating_add(STORING).saturating_add(ANSWER).saturating_add(ANSWER);
/// How long a use waits for a token.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at what another brings.
const LOOK: Duration = Duration::from_millis(100);
/// Waits between tries to store what the provider has given; the last one over and over.
pub(super) const AGAIN: [Duration; 5] = [
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(5),
];

/// Keeps access tokens good. Cheap to clone.
#[derive(Clone)]
pub struct Refresher(Shared);

/// A credential and its document in the clear, for one use.
struct OpenCredential {
    stored: StoredCredential,
    document: Secret,
}

impl Refresher {
    pub(super) fn new(shared: Shared) -> Refresher {
        Refresher(shared)
    }

    /// The document with an access token that is good: `document` itself where it is not due, or is not OAuth's at all.
    /// `force`: the API has refused this very token, so it is renewed unless somebody has done so since `stored` was
    /// read.
    ///
    /// Where the token is due and still good, a failure to renew it is logged, and the old one is used.
    ///
    /// What is returned may go where `stored` may, in the way that `stored` says: once its owner has written another
    /// way of use meanwhile, there is none.
    ///
    /// # Errors
    /// There is no good token; [`OAuthError`] says what can be done.
    pub async fn fresh(&self, stored: &StoredCredential, document: Secret, force: bool) -> Result<Secret, OAuthError> {
        if stored.credential.oauth.is_none() {
            return Ok(document);
        }
        let refused = force.then_some(stored.generation);
        let mut opened = OpenCredential { stored: stored.clone(), document };
        let work = async {
            loop {
                if let Some(document) = self.step(&opened, refused == Some(opened.stored.generation)).await? {
                    return Ok(document);
                }
                pause(LOOK).await;
                opened = self.read_again(stored).await?;
            }
        };
        timeout(PATIENCE, work).await.unwrap_or(Err(OAuthError::Busy))
    }

    /// A good document, or `None` while another renews it.
    async fn step(&self, opened: &OpenCredential, refused: bool) -> Result<Option<Secret>, OAuthError> {
        let credential = &opened.stored.credential;
        if credential.status == CredentialStatus::NeedsConsent {
            let why = credential.status_reason.clone();
            return Err(OAuthError::NeedsConsent(why.unwrap_or_else(|| "its provider no longer renews it".into())));
        }
        let odd = || OAuthError::Misconfigured("its document is no object with texts as tokens".into());
        let tokens = OAuthTokens::read(&opened.document).ok_or_else(odd)?;
        let now = self.0.now();
        let age = Age::of(credential.id, credential.expires_at, tokens.expires_in, now);
        let must = refused || age == Age::Over || tokens.access_token.is_none();
        if !must && (age == Age::Fresh || tokens.refresh_token.is_none()) {
            return Ok(Some(opened.document.clone()));
        }
        if refused && age != Age::Over && tokens.refresh_token.is_none() {
            return Err(OAuthError::NoRefreshToken);
        }
        let lease =
            with_timeout(self.0.store.claim_refresh(credential.id, credential.version, now + to_delta(LEASE))).await?;
        let Some(lease) = lease else { return Ok((!must).then(|| opened.document.clone())) };
        let turn = RefreshTurn { shared: self.0.clone(), stored: opened.stored.clone(), lease, must, refused };
        let (document, reference) = (opened.document.clone(), credential.reference());
        // on its own, because who waits for it may go away
        let renewed = match tokio::spawn(turn.run(document, tokens)).await {
            Ok(renewed) => renewed,
            Err(_) => Err(OAuthError::Later("renewing it broke off".into())),
        };
        match renewed {
            Err(
                error @ (OAuthError::Later(_)
                | OAuthError::Misconfigured(_)
                | OAuthError::Operator(_)
                | OAuthError::Store(_)),
            ) if !must => {
                tracing::warn!(tenant = credential.tenant_id, credential = %reference, %error,
                    "a credential is due and was not renewed; its old token is used while it is good");
                Ok(Some(opened.document.clone()))
            }
            renewed => renewed.map(Some),
        }
    }

    /// The credential that is stored now, while it is used as `stored` was.
    async fn read_again(&self, stored: &StoredCredential) -> Result<OpenCredential, OAuthError> {
        let read = &stored.credential;
        let (tenant, service, account) = (&read.tenant_id, &read.service, &read.account_name);
        let stored = with_timeout(self.0.store.get_credential(&Scope::Every, tenant, service, account)).await?;
        if !is_same_client(read, &stored.credential) {
            return Err(changed_meanwhile());
        }
        let document = self.0.vault.open_document(&stored)?;
        Ok(OpenCredential { stored, document })
    }
}

/// One worker's turn to renew a credential: it has the lease.
struct RefreshTurn {
    shared: Shared,
    stored: StoredCredential,
    lease: i64,
    /// The old token is of no use.
    must: bool,
    /// The old token was refused.
    refused: bool,
}

impl RefreshTurn {
    async fn run(self, document: Secret, tokens: OAuthTokens) -> Result<Secret, OAuthError> {
        let Some(refresh_token) = &tokens.refresh_token else {
            return self.end("it has expired, and there is no refresh token to renew it with".into()).await;
        };
        let oauth = self.stored.credential.oauth.clone().unwrap_or_default();
        let tenant = &self.stored.credential.tenant_id;
        // a resource that takes no more tokens of its authorization server may have another one
        let age = if self.refused { LOOKED_ANEW_AFTER } else { KEPT_FOR };
        let endpoint: Endpoint = match self.shared.endpoint(&oauth, tokens.client_secret.clone(), tenant, age).await {
            Ok(endpoint) => endpoint,
            Err(OAuthError::NeedsConsent(why)) => return self.end(why).await,
            Err(error) => return self.give_back(error).await,
        };
        let kind = Secret::new("refresh_token");
        // who has written the endpoint down can correct it
        let incorrect = |why| match oauth.provider {
            Some(_) => OAuthError::Operator(why),
            None => OAuthError::Misconfigured(why),
        };
        match endpoint.ask(&[("grant_type", &kind), ("refresh_token", refresh_token)], Some(&document)).await {
            Ok(granted) => self.keep(&document, &granted).await,
            Err(EndpointRefusal::Grant(why)) => self.end(format!("its provider says {why}")).await,
            Err(EndpointRefusal::Client(why)) => {
                let why = format!("its provider does not accept the client `{}`: {why}", endpoint.client_id);
                match is_registered(&oauth, &endpoint.client_id) {
                    // its server has forgotten it, and connecting registers another
                    true => {
                        self.shared.registry.forget(&endpoint.client_id).await;
                        self.end(why).await
                    }
                    false => self.give_back(incorrect(why)).await,
                }
            }
            Err(EndpointRefusal::Request(why)) => self.give_back(incorrect(format!("its token endpoint: {why}"))).await,
            Err(EndpointRefusal::Later(why)) => {
                self.give_back(OAuthError::Later(format!("its token endpoint: {why}"))).await
            }
        }
    }

    /// Stores what was given, and only then hands it out.
    async fn keep(&self, old: &Secret, granted: &OAuthTokenResponse) -> Result<Secret, OAuthError> {
        let credential = &self.stored.credential;
        let document = granted.written_into(Some(old));
        let expires_at = granted.expires_at(self.shared.now());
        let (tenant, reference) = (&credential.tenant_id, &credential.reference());
        let generation = next_generation(Some(&self.stored), self.shared.now());
        let sealed = self.shared.vault.seal_document(tenant, reference, generation, &document, expires_at)?;
        let until = Instant::now() + STORING;
        let mut waits = AGAIN.into_iter().chain(std::iter::repeat(AGAIN[AGAIN.len() - 1]));
        loop {
            let error = match timeout(ANSWER, self.store(&sealed)).await {
                Ok(Ok(stored)) => return self.given(document, &stored),
                Ok(Err(StoreError::Unavailable(error) | StoreError::TimedOut(error))) => error,
                Ok(Err(error)) => return Err(self.lost(error)),
                Err(_) => format!("no answer within {ANSWER:?}"),
            };
            let wait = waits.next().unwrap_or(ANSWER);
            if Instant::now() + wait >= until {
                return Err(self.lost(StoreError::Unavailable(error)));
            }
            tracing::warn!(tenant, credential = %reference, error, "what a provider has given is not stored yet, trying again");
            pause(wait).await;
        }
    }

    /// One try; what is stored then. A write that was told as failed may have been done.
    async fn store(&self, sealed: &SealedDocument) -> Result<StoredCredential, StoreError> {
        let id = self.stored.credential.id;
        match self.shared.store.store_refreshed(id, Some(self.lease), sealed).await {
            Err(StoreError::LeaseLost) => {}
            done => return done,
        }
        let stored = self.now_stored().await?;
        if stored.sealed == sealed.sealed {
            return Ok(stored);
        }
        // nobody has written another document: the one that this was made from is spent, whoever has the lease
        self.shared.store.store_refreshed(id, None, sealed).await
    }

    /// The new document, to whoever asked for it with what they had read of the credential.
    fn given(&self, document: Secret, stored: &StoredCredential) -> Result<Secret, OAuthError> {
        match is_same_client(&self.stored.credential, &stored.credential) {
            true => Ok(document),
            false => Err(changed_meanwhile()),
        }
    }

    async fn now_stored(&self) -> Result<StoredCredential, StoreError> {
        let c = &self.stored.credential;
        with_timeout(self.shared.store.get_credential(&Scope::Every, &c.tenant_id, &c.service, &c.account_name)).await
    }

    /// The error where the provider's answer can't be kept, so it must not be used.
    fn lost(&self, error: StoreError) -> OAuthError {
        let credential = &self.stored.credential;
        tracing::error!(tenant = credential.tenant_id, credential = %credential.reference(), %error,
            "a credential was renewed and could not be stored; it may have to be connected again");
        OAuthError::Store(error)
    }

    /// It is over: the owner is told, and then the credential says it. In this order, because telling again tells
    /// nothing new.
    async fn end(&self, why: String) -> Result<Secret, OAuthError> {
        let credential = &self.stored.credential;
        let now = self.now_stored().await?;
        if now.generation != self.stored.generation || !is_same_client(credential, &now.credential) {
            return Err(changed_meanwhile());
        }
        with_timeout(notice::needs_consent(&self.shared.store, &self.stored, &why)).await?;
        match with_timeout(self.shared.store.mark_needs_consent(credential.id, self.lease, &why)).await {
            Ok(_) => Err(OAuthError::NeedsConsent(why)),
            Err(StoreError::LeaseLost) => Err(changed_meanwhile()),
            Err(error) => Err(error.into()),
        }
    }

    /// Nothing came of it. While the old token is good the lease is kept to its end, so that not every use waits for an
    /// endpoint that is away; without a good token the next use tries at once.
    async fn give_back(&self, error: OAuthError) -> Result<Secret, OAuthError> {
        if self.must {
            with_timeout(self.shared.store.release_refresh(self.stored.credential.id, self.lease)).await?;
        }
        Err(error)
    }
}

/// Whether this service has registered the client itself when the credential was connected.
fn is_registered(oauth: &OAuth, client_id: &str) -> bool {
    oauth.provider.is_some() && oauth.client_id.as_deref() == Some(client_id) && !is_document(client_id)
}

/// Whether a document may be used by what was read of its credential before: the same one, that goes to the same hosts
/// in the same way and is renewed at the same place.
fn is_same_client(read: &Credential, now: &Credential) -> bool {
    let of = |credential: &Credential| {
        let Credential { id, hosts, inject, oauth, .. } = credential.clone();
        // which scopes it misses is no part of where it goes
        (id, hosts, inject, oauth.map(|oauth| OAuth { missed_scopes: vec![], ..oauth }))
    };
    of(read) == of(now)
}

/// Its owner has written it while the old tokens were tried: nothing is to be said of those.
fn changed_meanwhile() -> OAuthError {
    OAuthError::Later("it was written while it was renewed".into())
}
