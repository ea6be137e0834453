//! A look at a provider that costs nothing: a refresh token that nobody has ever been given is offered, and what the
//! endpoint finds wrong with the request tells whether it knows the client.

use crate::base::secret::Secret;
use crate::ports::egress::{Egress, operator_client};
use crate::ports::vault::credentials::reading_turn::ReadingTurn;
use crate::ports::vault::oauth::client::{ClientDocument, ClientIdentity};
use crate::ports::vault::oauth::discovery::discover;
use crate::ports::vault::oauth::endpoint::{ClientAuthentication, Endpoint, EndpointRefusal, TIMEOUT};
use crate::ports::vault::oauth::known::KnownProvider;
use crate::ports::vault::oauth::metadata::DiscoveryError;
use crate::ports::vault::oauth::provider::OAuthProvider;

/// Given by nobody.
const NO_TOKEN: &str = "reveille-check-is-no-token";

/// Findings of a look. The texts hold no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// The client is known there, and shows itself rightly.
    Known,
    /// It is not, or its secret is wrong.
    Refused(String),
    /// It answers, and can't be understood.
    Unclear(String),
    /// Nobody answers, or not now.
    Away(String),
}

/// How this service becomes known to an authorization server that was discovered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiscoveryProbe {
    /// By the operator's client, which its token endpoint was asked about.
    Client {
        /// The server's name for itself.
        issuer: String,
        /// The answer.
        probe: Probe,
    },
    /// By the document that this service serves at this address.
    Document {
        /// The server's name for itself.
        issuer: String,
        /// The address.
        client_id: String,
    },
    /// It registers itself when an account is connected.
    Registration {
        /// The server's name for itself.
        issuer: String,
    },
}

/// Looks for the authorization server of a provider with a resource, and asks it about the operator's client, where
/// there is one. Nothing is registered.
///
/// # Errors
/// No server is found, or none that this service can become known to.
pub async fn probe_discovered(
    egress: &Egress,
    provider: &OAuthProvider,
    document: &ClientDocument,
) -> Result<DiscoveryProbe, DiscoveryError> {
    let server = discover(egress, provider).await?;
    let issuer = server.issuer.clone();
    match ClientIdentity::choose(provider, &server, document)? {
        ClientIdentity::Document => Ok(DiscoveryProbe::Document { issuer, client_id: document.client_id.clone() }),
        ClientIdentity::Registration(_) => Ok(DiscoveryProbe::Registration { issuer }),
        ClientIdentity::Configured => {
            let known = KnownProvider::discovered(provider, server.clone())?;
            let probe = ask(&known.provider, ClientAuthentication::User(egress.clone())).await;
            Ok(DiscoveryProbe::Client { issuer, probe })
        }
    }
}

/// Asks the token endpoint of a provider.
pub async fn probe(provider: &OAuthProvider) -> Probe {
    ask(provider, ClientAuthentication::Operator(operator_client(TIMEOUT))).await
}

async fn ask(provider: &OAuthProvider, way: ClientAuthentication) -> Probe {
    let endpoint = Endpoint {
        token_url: provider.token_url.clone(),
        client_id: provider.client_id.clone(),
        client_secret: provider.client_secret.clone(),
        client_auth: provider.client_auth,
        resource: provider.resource.clone(),
        way,
        turn: ReadingTurn::default(),
    };
    let (kind, token) = (Secret::new("refresh_token"), Secret::new(NO_TOKEN));
    match endpoint.ask(&[("grant_type", &kind), ("refresh_token", &token)], None).await {
        Err(EndpointRefusal::Grant(_)) => Probe::Known,
        Err(EndpointRefusal::Client(why)) => Probe::Refused(why),
        Err(EndpointRefusal::Request(why)) => Probe::Unclear(why),
        Err(EndpointRefusal::Later(why)) => Probe::Away(why),
        Ok(_) => Probe::Unclear("it gives tokens for a refresh token that nobody was given".into()),
    }
}
