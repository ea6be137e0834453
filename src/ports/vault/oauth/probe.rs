//! A look at a provider that costs nothing: a refresh token that nobody has ever been given is offered, and what the
//! endpoint finds wrong with the request tells whether it knows the client.

use crate::base::secret::Secret;
use crate::ports::egress::operator_client;
use crate::ports::vault::credentials::reading_turn::ReadingTurn;
use crate::ports::vault::oauth::endpoint::{ClientAuthentication, Endpoint, EndpointRefusal, TIMEOUT};
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

/// Asks the token endpoint of a provider.
pub async fn probe(provider: &OAuthProvider) -> Probe {
    let endpoint = Endpoint {
        token_url: provider.token_url.clone(),
        client_id: provider.client_id.clone(),
        client_secret: provider.client_secret.clone(),
        client_auth: provider.client_auth,
        way: ClientAuthentication::Operator(operator_client(TIMEOUT)),
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
