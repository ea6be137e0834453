//! Connecting an account: a link to the provider for a person, and a credential of what they agree to.
//!
//! A flow can be ended once: that it was is stored before its code is sent, because a code that is sent twice makes
//! providers take back what they gave for it (RFC 6749, section 10.5). Its beginning is bound to no browser: the link
//! is asked for by a token, not in a browser, and nobody is logged in here, so whoever the link was sent to begins it.
//! Its end is: it takes the browser that was shown the page, which names the tenant and the account before anything is
//! done. And without the verifier in the sealed state a foreign code is refused.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::json;
use url::Url;

use crate::base::clock::pause;
use crate::base::id::{Scope, new_id};
use crate::base::secret::Secret;
use crate::base::token::TokenHash;
use crate::domain::credential::{CredentialStatus, OAuth, Reference};
use crate::domain::task::DependentTask;
use crate::ports::vault::VaultError;
use crate::ports::vault::credentials::replace;
use crate::ports::vault::oauth::discovery::{KEPT_FOR, LOOKED_ANEW_AFTER};
use crate::ports::vault::oauth::endpoint::EndpointRefusal;
use crate::ports::vault::oauth::flow::{FlowServer, OAuthFlow, StateError};
use crate::ports::vault::oauth::known::KnownProvider;
use crate::ports::vault::oauth::metadata::DiscoveryError;
use crate::ports::vault::oauth::refresh::AGAIN;
use crate::ports::vault::oauth::tokens::OAuthTokenResponse;
use crate::ports::vault::oauth::{OAuthParts, Shared};
use crate::store::{CredentialRowDraft, Idempotency, StoreError, StoredAnswer, StoredCredential, next_generation};

/// Takes people to providers, and brings back what they agreed to. Cheap to clone.
#[derive(Clone)]
pub struct OAuthConnector {
    shared: Shared,
    redirect_uri: Arc<str>,
}

/// A flow that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartedConnection {
    /// Where the person goes.
    pub url: Url,
    /// The instant from which the link leads nowhere.
    pub expires_at: DateTime<Utc>,
}

/// The account that a person is about to connect.
#[derive(Debug, Clone)]
pub struct ConnectOffer {
    /// The connection to make.
    pub flow: OAuthFlow,
    /// Where the account will be used.
    pub hosts: Vec<String>,
    /// Scopes that will be asked for.
    pub scopes: Vec<String>,
    /// A credential is there already, and will be replaced.
    pub replaces: bool,
}

/// An account that was connected, and what follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectedAccount {
    /// Of the access token.
    pub expires_at: Option<DateTime<Utc>>,
    /// Whether it can be renewed when that is over.
    pub is_renewable: bool,
    /// Scope that was agreed to, where the provider says so.
    pub scope: Option<String>,
    /// Tasks that were paused for want of it, and go on: the first of them.
    pub resumed: Vec<DependentTask>,
    /// How many more go on after them.
    pub resuming: u64,
}

/// Why nothing is connected. The texts hold no secret.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No provider of this name is configured.
    #[error("the operator has described no service `{0}` in [oauth.*]")]
    NoSuchService(String),
    /// The state is not of this service.
    #[error("the link is not known")]
    Unknown,
    /// The link is too old.
    #[error("the link is too old")]
    Expired,
    /// It was ended before. `connected`: the account is connected now.
    /// The link was used before.
    #[error("the link was used already")]
    Used {
        /// The account was connected by it.
        connected: bool,
    },
    /// The code is used up, too old, or not from this flow.
    #[error("the provider does not accept the code: {0}")]
    Code(String),
    /// The provider is not set up rightly; the sentence says how.
    #[error("{0}")]
    Misconfigured(String),
    /// The provider may answer later; the sentence says why it does not now.
    #[error("the provider can't be asked now: {0}")]
    Later(String),
    /// The store has failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The vault has failed.
    #[error(transparent)]
    Vault(#[from] VaultError),
}

impl From<StateError> for ConnectError {
    fn from(error: StateError) -> ConnectError {
        match error {
            StateError::Unknown => ConnectError::Unknown,
            StateError::Expired => ConnectError::Expired,
        }
    }
}

impl From<DiscoveryError> for ConnectError {
    fn from(error: DiscoveryError) -> ConnectError {
        match error {
            DiscoveryError::Refused(why) => ConnectError::Misconfigured(why),
            DiscoveryError::Later(why) => ConnectError::Later(why),
        }
    }
}

impl OAuthConnector {
    pub(super) fn new(shared: Shared, redirect_uri: String) -> OAuthConnector {
        OAuthConnector { shared, redirect_uri: redirect_uri.into() }
    }

    /// The services that can be connected.
    pub fn services(&self) -> impl Iterator<Item = &str> {
        self.shared.providers.keys().map(String::as_str)
    }

    /// The provider's address for an account of a tenant. `by` is who asks: `token:<id>`. Stores nothing. Where the
    /// provider is discovered this looks for it, and registers this service there if nothing else will do; and the
    /// scopes of the account that is there are asked for as well.
    pub async fn start(
        &self,
        tenant: &str,
        reference: &Reference,
        by: &str,
    ) -> Result<StartedConnection, ConnectError> {
        let service = &reference.service;
        let mut known = self.known(service, LOOKED_ANEW_AFTER).await?;
        let now = self.shared.now();
        let mut flow = OAuthFlow::begin(new_id(now), tenant, reference, by, now)?;
        if let Some(server) = &known.server {
            let OAuthParts { registry, egress, .. } = &*self.shared;
            let client = registry.client(egress, (service.as_str(), &known.provider), server, now).await?;
            if let Some(client) = &client {
                known.provider.show_as(client);
            }
            let (issuer, names_itself) = (server.issuer.clone(), server.names_itself);
            add_scopes(&mut known, self.stored(&flow).await?.as_ref());
            flow.server = Some(FlowServer { issuer, names_itself, client });
        }
        let state = flow.state(&self.shared.vault)?;
        let odd = || ConnectError::Misconfigured(format!("oauth.{service}.authorize_url is no address"));
        let url = flow.address(&known.provider, &self.redirect_uri, &state).ok_or_else(odd)?;
        Ok(StartedConnection { url, expires_at: flow.expires_at })
    }

    /// The offer for a `state` that came back. Changes nothing.
    pub async fn offer(&self, state: &str) -> Result<ConnectOffer, ConnectError> {
        let flow = OAuthFlow::read(&self.shared.vault, state, self.shared.now())?;
        let service = &flow.reference.service;
        let missing = || ConnectError::NoSuchService(service.clone());
        let hosts = self.shared.providers.get(service).ok_or_else(missing)?.hosts();
        let stored = self.stored(&flow).await?;
        // a server that is away by now is told of when the button is pressed
        let known = self.known_for(&flow, stored.as_ref()).await;
        let scopes = known.map(|known| known.provider.scopes).unwrap_or_default();
        Ok(ConnectOffer { hosts, scopes, replaces: stored.is_some(), flow })
    }

    /// Whether who says this of themselves, or nothing, may be the provider of a flow (RFC 9207, section 2.4): a code
    /// that another provider gave must not be sent to this one. A provider whose issuer is configured says who it is. A
    /// discovered one does where its metadata says so, and is never another than the one that was asked.
    pub fn is_of(&self, flow: &OAuthFlow, issuer: Option<&str>) -> bool {
        if let Some(asked) = &flow.server {
            return issuer.map_or(!asked.names_itself, |said| said == asked.issuer);
        }
        let provider = self.shared.providers.get(&flow.reference.service);
        provider.and_then(|provider| provider.issuer.as_deref()).is_none_or(|own| issuer == Some(own))
    }

    /// Ends a flow: the code becomes tokens, and they a credential, active, in the place of the one that was there.
    pub async fn finish(&self, flow: OAuthFlow, code: Secret) -> Result<ConnectedAccount, ConnectError> {
        let this = self.clone();
        // on its own, because the person's browser may go away when the code is spent already
        let work = tokio::spawn(async move { this.end(&flow, &code).await });
        work.await.unwrap_or_else(|_| Err(ConnectError::Later("the exchange broke off".into())))
    }

    async fn end(&self, flow: &OAuthFlow, code: &Secret) -> Result<ConnectedAccount, ConnectError> {
        let known = self.known_for(flow, self.stored(flow).await?.as_ref()).await?;
        if !self.take(flow).await? {
            let stored = self.stored(flow).await?;
            let connected = stored.is_some_and(|stored| stored.credential.status == CredentialStatus::Active);
            return Err(ConnectError::Used { connected });
        }
        let (kind, redirect_uri) = (Secret::new("authorization_code"), Secret::new(&*self.redirect_uri));
        let form = [
            ("grant_type", &kind),
            ("code", code),
            ("redirect_uri", &redirect_uri),
            ("code_verifier", flow.verifier()),
        ];
        let endpoint = self.shared.endpoint_of(&known, &flow.tenant);
        let granted = endpoint.ask(&form, None).await;
        if let Err(EndpointRefusal::Client(_)) = granted {
            // the next link does not show it again, where it was registered
            self.shared.registry.forget(&endpoint.client_id).await;
        }
        let granted = granted.map_err(|refusal| match refusal {
            EndpointRefusal::Grant(why) => ConnectError::Code(why),
            EndpointRefusal::Client(why) | EndpointRefusal::Request(why) => {
                ConnectError::Misconfigured(format!("the provider refuses this service: {why}"))
            }
            EndpointRefusal::Later(why) => ConnectError::Later(why),
        })?;
        self.store(flow, &known, &granted).await
    }

    async fn known(&self, service: &str, age: TimeDelta) -> Result<KnownProvider, ConnectError> {
        let known = self.shared.known(service, age).await?;
        known.ok_or_else(|| ConnectError::NoSuchService(service.to_owned()))
    }

    /// The provider of a flow, which shows this service as it was when the flow began, with the scopes of the account
    /// that is there. A code goes to the server alone that was asked for it.
    async fn known_for(
        &self,
        flow: &OAuthFlow,
        stored: Option<&StoredCredential>,
    ) -> Result<KnownProvider, ConnectError> {
        let service = &flow.reference.service;
        let mut known = self.known(service, KEPT_FOR).await?;
        if !is_asked(flow, &known) {
            // another instance may have made the link, and have looked later than this one
            known = self.known(service, LOOKED_ANEW_AFTER).await?;
        }
        if !is_asked(flow, &known) {
            let why = "its authorization server is another one since the link was made; make another link";
            return Err(ConnectError::Misconfigured(why.into()));
        }
        if let Some(client) = flow.server.as_ref().and_then(|server| server.client.as_ref()) {
            known.provider.show_as(client);
        }
        add_scopes(&mut known, stored);
        Ok(known)
    }

    /// Whether this is the first end of the flow, over all instances.
    async fn take(&self, flow: &OAuthFlow) -> Result<bool, ConnectError> {
        let key = format!("oauth:{}", flow.id);
        let once = Idempotency {
            tenant: flow.tenant.clone(),
            digest: TokenHash::of(&key).as_bytes().to_vec(),
            key,
            status: 200,
            body: json!({}).into(),
        };
        Ok(matches!(self.shared.store.claim_key(&once, self.shared.now()).await?, StoredAnswer::Done(())))
    }

    async fn stored(&self, flow: &OAuthFlow) -> Result<Option<StoredCredential>, StoreError> {
        let Reference { service, account } = &flow.reference;
        self.shared.store.find_credential(&Scope::Every, &flow.tenant, service, account).await
    }

    async fn store(
        &self,
        flow: &OAuthFlow,
        known: &KnownProvider,
        granted: &OAuthTokenResponse,
    ) -> Result<ConnectedAccount, ConnectError> {
        let now = self.shared.now();
        let (mut oauth, secret) = renewed_as(flow);
        oauth.scopes = known.granted(granted.scope.as_deref());
        let (document, expires_at) = (granted.written_into(secret.as_ref()), granted.expires_at(now));
        let Reference { service, account } = &flow.reference;
        // somebody else may be faster, and what the person has just agreed to wins
        let make = |old: Option<&StoredCredential>| -> Result<CredentialRowDraft, ConnectError> {
            let generation = next_generation(old, now);
            let sealed =
                self.shared.vault.seal_document(&flow.tenant, &flow.reference, generation, &document, expires_at)?;
            Ok(CredentialRowDraft {
                tenant_id: flow.tenant.clone(),
                service: service.clone(),
                account_name: account.clone(),
                hosts: known.provider.hosts(),
                inject: Some(known.provider.inject()),
                oauth: Some(oauth.clone()),
                document: Some(sealed),
                by: flow.by.clone(),
            })
        };
        let mut waits = AGAIN.into_iter();
        let (resumed, resuming) = loop {
            match replace(&self.shared.store, &Scope::Every, &flow.tenant, &flow.reference, make).await {
                // the code is spent: what it brought is not thrown away for a database that is away for a moment
                Err(ConnectError::Store(StoreError::Unavailable(_) | StoreError::TimedOut(_)))
                    if let Some(wait) = waits.next() =>
                {
                    pause(wait).await;
                }
                Err(error) => return Err(error),
                Ok(saved) => break (saved.resumed, saved.resuming),
            }
        };
        let is_renewable = granted.refresh_token.as_ref().is_some_and(|token| !token.expose().is_empty());
        Ok(ConnectedAccount { expires_at, is_renewable, scope: granted.scope.clone(), resumed, resuming })
    }
}

/// Whether this is the provider of a flow, with the server that was asked where it is discovered.
fn is_asked(flow: &OAuthFlow, known: &KnownProvider) -> bool {
    let asked = flow.server.as_ref().map(|server| &server.issuer);
    asked == known.server.as_ref().map(|server| &server.issuer)
}

/// Has the scopes of the account that is there asked for as well.
fn add_scopes(known: &mut KnownProvider, stored: Option<&StoredCredential>) {
    if let Some(oauth) = stored.and_then(|stored| stored.credential.oauth.as_ref()) {
        known.ask_for_scopes_of(oauth);
    }
}

/// How what a flow brings is renewed: by the section of its service, and where its server was discovered by that one
/// alone and as the client that was shown to it, whose secret is kept in the document.
fn renewed_as(flow: &OAuthFlow) -> (OAuth, Option<Secret>) {
    let mut oauth = OAuth { provider: Some(flow.reference.service.clone()), ..OAuth::default() };
    let Some(server) = &flow.server else { return (oauth, None) };
    oauth.issuer = Some(server.issuer.clone());
    let Some(client) = &server.client else { return (oauth, None) };
    oauth.client_id = Some(client.id.clone());
    oauth.client_auth = client.secret.as_ref().map(|_| client.auth);
    let secret = client.secret.as_ref().map(|secret| json!({ "client_secret": secret.expose() }).to_string());
    (oauth, secret.map(Secret::new))
}
