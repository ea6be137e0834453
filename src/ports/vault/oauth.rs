//! OAuth 2: credentials that end and are renewed, and accounts that people connect.
//!
//! [`Refresher`] renews an access token ahead of its end, one at a time over all instances. [`OAuthConnector`] takes a
//! person to the provider and brings back what they agreed to. Providers come from `[oauth.*]`, with their addresses or
//! with a resource that is asked for them, or a credential brings its own token endpoint. Nothing lies here in the
//! clear: documents are opened for one request and sealed again. What a crash can cost is said in [`refresh`].

mod challenge;
mod client;
mod connect;
mod discovery;
mod endpoint;
mod flow;
mod known;
mod metadata;
mod notice;
mod probe;
mod provider;
pub mod refresh;
mod tokens;
mod well_known;

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};

use crate::base::secret::Secret;
use crate::domain::credential::OAuth;
use crate::ports::egress::{Egress, operator_client};
use crate::ports::vault::credentials::reading_turn::ReadingTurn;
use crate::ports::vault::oauth::client::{ClientRegistry, OAuthClient};
use crate::ports::vault::oauth::discovery::Discoverer;
use crate::ports::vault::oauth::endpoint::{ClientAuthentication, Endpoint, TIMEOUT};
use crate::ports::vault::oauth::known::KnownProvider;
use crate::ports::vault::oauth::metadata::{DiscoveredServer, DiscoveryError, shown};
use crate::ports::vault::{Vault, VaultError};
use crate::store::{Store, StoreError};

pub use challenge::BearerChallenge;
pub use client::{CLIENT_DOCUMENT, ClientDocument};
pub use connect::{ConnectError, ConnectOffer, ConnectedAccount, OAuthConnector, StartedConnection};
pub use flow::{OAuthFlow, StateError};
pub use probe::{DiscoveryProbe, Probe, probe, probe_discovered};
pub use provider::{OAuthProvider, Settings, check};
pub use refresh::Refresher;

/// Below `server.public_url`, where providers send people back to: the redirect URI that has to be registered.
pub const CALLBACK: &str = "/oauth/callback";

/// The address to which a provider sends people back.
pub fn redirect_uri(public_url: &str) -> String {
    format!("{}{CALLBACK}", public_url.trim_end_matches('/'))
}

/// This service as a client of OAuth 2.
pub fn client_document(public_url: &str) -> ClientDocument {
    ClientDocument::new(public_url, &redirect_uri(public_url))
}

/// Why a credential has no good access token, by what can be done. The texts hold no secret.
#[derive(Debug, thiserror::Error)]
pub enum OAuthError {
    /// Its owner has to connect the account again; they were told.
    #[error("it has to be connected again: {0}")]
    NeedsConsent(String),
    /// There is nothing to renew it with, and nothing says that it is over.
    #[error("it holds no refresh token, so it can't be renewed")]
    NoRefreshToken,
    /// Its owner has to correct something.
    #[error("it can't be renewed: {0}")]
    Misconfigured(String),
    /// Only whoever runs this service can correct it.
    #[error("it can't be renewed: {0}")]
    Operator(String),
    /// Passing: the provider is away or slow.
    #[error("it can't be renewed now: {0}")]
    Later(String),
    /// Passing: another worker has been renewing it for too long.
    #[error("it is being renewed, and that takes long")]
    Busy,
    /// The store has failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The vault has failed.
    #[error(transparent)]
    Vault(#[from] VaultError),
}

/// Parts that both halves work with. Cheap to clone.
#[derive(Clone)]
struct Shared(Arc<OAuthParts>);

struct OAuthParts {
    store: Store,
    vault: Vault,
    egress: Egress,
    providers: Settings,
    /// For the operator's providers.
    client: reqwest::Client,
    discoverer: Discoverer,
    registry: ClientRegistry,
}

/// Both halves.
pub fn open(
    store: &Store,
    vault: &Vault,
    egress: &Egress,
    providers: &Settings,
    public_url: &str,
) -> (Refresher, OAuthConnector) {
    let parts = OAuthParts {
        store: store.clone(),
        vault: vault.clone(),
        egress: egress.clone(),
        providers: providers.clone(),
        client: operator_client(TIMEOUT),
        discoverer: Discoverer::new(egress, providers),
        registry: ClientRegistry::new(providers, client_document(public_url)),
    };
    let shared = Shared(Arc::new(parts));
    (Refresher::new(shared.clone()), OAuthConnector::new(shared, redirect_uri(public_url)))
}

impl std::ops::Deref for Shared {
    type Target = OAuthParts;

    fn deref(&self) -> &OAuthParts {
        &self.0
    }
}

impl OAuthParts {
    fn now(&self) -> DateTime<Utc> {
        self.store.clock().now()
    }

    /// A service of the configuration with all its addresses, which were found out at most `age` ago; `None`: there is
    /// none of this name.
    async fn known(&self, service: &str, age: TimeDelta) -> Result<Option<KnownProvider>, DiscoveryError> {
        let Some(provider) = self.providers.get(service) else { return Ok(None) };
        if !provider.is_discovered() {
            return Ok(Some(KnownProvider::written(provider)));
        }
        let server = self.discoverer.find(service, provider, self.now(), age).await?;
        KnownProvider::discovered(provider, server).map(Some)
    }

    /// The token endpoint of a provider, for an account of a tenant.
    fn endpoint_of(&self, known: &KnownProvider, tenant: &str) -> Endpoint {
        let provider = &known.provider;
        Endpoint {
            token_url: provider.token_url.clone(),
            client_id: provider.client_id.clone(),
            client_secret: provider.client_secret.clone(),
            client_auth: provider.client_auth,
            resource: provider.resource.clone(),
            // a discovered address is not the operator's
            way: match known.server {
                Some(_) => ClientAuthentication::User(self.egress.clone()),
                None => ClientAuthentication::Operator(self.client.clone()),
            },
            turn: ReadingTurn::new(self.store.computing(), tenant),
        }
    }

    /// The token endpoint of a credential of a tenant, found out at most `age` ago; `secret` is the client's, from its
    /// document.
    async fn endpoint(
        &self,
        oauth: &OAuth,
        secret: Option<Secret>,
        tenant: &str,
        age: TimeDelta,
    ) -> Result<Endpoint, OAuthError> {
        if let Some(name) = &oauth.provider {
            let gone = || OAuthError::Operator(format!("the operator has not described it in [oauth.{name}]"));
            let mut known = self.known(name, age).await?.ok_or_else(gone)?;
            if let Some(client) = client_at(&known, oauth, secret)? {
                known.provider.show_as(&client);
            }
            return Ok(self.endpoint_of(&known, tenant));
        }
        match (&oauth.token_url, &oauth.client_id) {
            (Some(token_url), Some(client_id)) => Ok(Endpoint {
                token_url: token_url.clone(),
                client_id: client_id.clone(),
                client_secret: secret,
                client_auth: oauth.client_auth.unwrap_or_default(),
                resource: None,
                way: ClientAuthentication::User(self.egress.clone()),
                turn: ReadingTurn::new(self.store.computing(), tenant),
            }),
            _ => Err(OAuthError::Misconfigured("it names neither a provider nor `token_url` and `client_id`".into())),
        }
    }
}

/// The client as which a credential is renewed at a discovered server; `None`: the operator's. What another server has
/// given is not shown to this one.
fn client_at(known: &KnownProvider, oauth: &OAuth, secret: Option<Secret>) -> Result<Option<OAuthClient>, OAuthError> {
    let Some(DiscoveredServer { issuer, .. }) = &known.server else { return Ok(None) };
    match &oauth.issuer {
        Some(giver) if giver == issuer => {}
        Some(giver) => {
            let why = format!("its tokens are from `{}`, and its server names `{}` now", shown(giver), shown(issuer));
            return Err(OAuthError::NeedsConsent(why));
        }
        None => return Err(OAuthError::NeedsConsent("it does not say which authorization server gave it".into())),
    }
    match &oauth.client_id {
        _ if !known.provider.client_id.is_empty() => Ok(None),
        Some(id) => Ok(Some(OAuthClient { id: id.clone(), secret, auth: oauth.client_auth.unwrap_or_default() })),
        None => Err(OAuthError::NeedsConsent("it does not say as which client it was connected".into())),
    }
}

impl From<DiscoveryError> for OAuthError {
    fn from(error: DiscoveryError) -> OAuthError {
        match error {
            DiscoveryError::Refused(why) => OAuthError::Operator(why),
            DiscoveryError::Later(why) => OAuthError::Later(why),
        }
    }
}
